// The tree or trees of a group on a canvas, over the turns from left to right; ten thousand turns stay fluid.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { select } from "d3-selection";
import { zoom, zoomIdentity, type ZoomTransform } from "d3-zoom";
import type { Forest, Spot } from "./forest";
import { path } from "./forest";
import { Figure, figure, Words } from "./text";
import type { GroupView, Turn } from "./views";

const COLUMN = 46;
const LANE = 14;
const GAP = 8;

export const COLOURS: Record<string, (turn: Turn) => number | null> = {
  credit: (turn) => turn.credit,
  entropy: (turn) => turn.mean_entropy,
  reward: (turn) => turn.reward,
};

interface Props {
  group: GroupView; trees: Forest; turn: number | null; colour: string;
  onTurn: (turn: number) => void; onColour: (name: string) => void;
}

export function Tree({ group, trees, turn, colour, onTurn, onColour }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const view = useRef<ZoomTransform>(zoomIdentity);
  const draw = useRef<() => void>(() => undefined);
  const [dark, setDark] = useState(matchMedia("(prefers-color-scheme: dark)").matches);
  const value = COLOURS[colour] ?? (() => null);
  const most = useMemo(
    () => group.turns.reduce((size, each) => Math.max(size, Math.abs(value(each) ?? 0)), 1e-12),
    [group, colour],
  );
  const chosen = useMemo(() => new Set(turn === null ? [] : path(group, trees, turn)), [group, trees, turn]);
  const height = (trees.lanes.length || 1) * LANE + GAP;
  const at = (spot: Spot): [number, number] => [
    spot.depth * COLUMN,
    (spot.row - trees.rows[0]) * height + spot.lane * LANE,
  ];

  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);

  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const paint = () => paintTree(element, { group, trees, turn, chosen, value, most, dark, at, view: view.current });
    draw.current = paint;
    const behaviour = zoom<HTMLCanvasElement, unknown>().scaleExtent([0.02, 4]).on("zoom", (event: { transform: ZoomTransform }) => {
      view.current = event.transform;
      requestAnimationFrame(paint);
    });
    const selected = select(element).call(behaviour).on("dblclick.zoom", null);
    const seen = element.getBoundingClientRect();
    if (view.current === zoomIdentity) {
      const wide = (trees.deepest + 1) * COLUMN + 2 * GAP;
      const tall = (trees.rows[1] - trees.rows[0] + 1) * height + 2 * GAP;
      const scale = Math.max(0.05, Math.min(1.5, seen.width / wide, seen.height / tall));
      selected.call(behaviour.transform, zoomIdentity.translate(GAP, GAP).scale(scale));
    } else if (turn !== null) {
      const spot = trees.spots[turn];
      if (spot) {
        const [x, y] = view.current.apply(at(spot));
        if (x < 0 || y < 0 || x > seen.width - COLUMN || y > seen.height - LANE) {
          selected.call(behaviour.translateTo, ...at(spot));
        }
      }
    }
    paint();
    const watched = new ResizeObserver(paint);
    watched.observe(element);
    return () => watched.disconnect();
  }, [group, trees, turn, colour, dark]);

  const clicked = (event: MouseEvent) => {
    const [x, y] = view.current.invert([event.offsetX, event.offsetY]);
    const hit = trees.spots.find((spot) => {
      const [left, top] = at(spot);
      return x >= left && x <= left + COLUMN && y >= top - GAP / 2 && y <= top + LANE + GAP / 2;
    });
    if (hit) onTurn(hit.turn.id);
  };
  const now = turn === null ? null : group.turns[turn];
  return (
    <section class="tree" aria-label="tree">
      <div class="bar">
        <fieldset>
          <legend>colour</legend>
          {Object.keys(COLOURS).map((name) => (
            <label key={name}>
              <input type="radio" name="colour" checked={name === colour} onChange={() => onColour(name)} /> {name}
            </label>
          ))}
        </fieldset>
        <span class="scale" aria-hidden="true">
          <i class="low" /> {figure(-most)} <i class="zero" /> 0 <i class="high" /> {figure(most)} <i class="none" /> no gradient
        </span>
        <span class="quiet">lanes: {trees.lanes.map((name, number) => <span key={name}>{number ? "; " : ""}<Words text={name} /></span>)}</span>
      </div>
      <canvas
        ref={canvas} tabIndex={0} role="application" data-focus="tree" onClick={clicked}
        aria-label={`${group.turns.length} turns in ${trees.children.get(-1)?.length ?? 0} trees; arrow keys move between turns`}
      />
      <p class="said" aria-live="polite">
        {now ? (
          <>
            turn {now.id}: <Words text={`${now.role}, level ${now.level}`} />, {now.n_action} tokens, credit <Figure value={now.credit} signed />,
            entropy <Figure value={now.mean_entropy} />, reward <Figure value={now.reward} />
            {!now.valid && <b class="bad"> not understood</b>}{!now.trained && <b> not trained</b>}
            {" "}<span class="quiet"><Words text={now.text.slice(0, 160)} /></span>
          </>
        ) : "No turn is chosen: press the right arrow key."}
      </p>
    </section>
  );
}

interface Painting {
  group: GroupView; trees: Forest; turn: number | null; chosen: Set<number>; value: (turn: Turn) => number | null;
  most: number; dark: boolean; at: (spot: Spot) => [number, number]; view: ZoomTransform;
}

function paintTree(element: HTMLCanvasElement, what: Painting): void {
  const brush = element.getContext("2d");
  if (!brush) return;
  const ratio = devicePixelRatio || 1;
  const { width, height } = element.getBoundingClientRect();
  if (element.width !== Math.round(width * ratio) || element.height !== Math.round(height * ratio)) {
    element.width = Math.round(width * ratio);
    element.height = Math.round(height * ratio);
  }
  const { k, x, y } = what.view;
  brush.setTransform(ratio, 0, 0, ratio, 0, 0);
  brush.clearRect(0, 0, width, height);
  brush.setTransform(ratio * k, 0, 0, ratio * k, ratio * x, ratio * y);
  const seen = (spot: Spot) => {
    const [left, top] = what.view.apply(what.at(spot));
    return left > -4 * COLUMN * k && left < width + COLUMN * k && top > -height && top < 2 * height;
  };
  const shown = what.trees.spots.filter(seen);
  for (const spot of shown) paintLink(brush, what, spot);
  for (const spot of shown) paintTurn(brush, what, spot);
}

function paintLink(brush: CanvasRenderingContext2D, what: Painting, spot: Spot): void {
  const before = what.trees.spots[spot.turn.parent];
  if (before) {
    const [x, y] = what.at(spot);
    const [left, top] = what.at(before);
    const bold = what.chosen.has(spot.turn.id);
    brush.strokeStyle = what.dark ? (bold ? "#e8e8e8" : "#565656") : bold ? "#222222" : "#bcbcbc";
    brush.lineWidth = bold ? 2 : 1;
    brush.beginPath();
    brush.moveTo(left + wide(before.turn), top + LANE / 2);
    brush.bezierCurveTo(x - 8, top + LANE / 2, left + COLUMN, y + LANE / 2, x, y + LANE / 2);
    brush.stroke();
  }
  const plan = what.trees.spots[spot.turn.plan];
  if (plan && what.turn !== null && (spot.turn.id === what.turn || plan.turn.id === what.turn)) {
    const [x, y] = what.at(spot);
    const [left, top] = what.at(plan);
    brush.strokeStyle = what.dark ? "#c9a0ff" : "#7a3fc0";
    brush.setLineDash([3, 3]);
    brush.beginPath();
    brush.moveTo(left + wide(plan.turn) / 2, top + LANE);
    brush.quadraticCurveTo(left, (top + y) / 2 + LANE, x, y + LANE / 2);
    brush.stroke();
    brush.setLineDash([]);
  }
}

function wide(turn: Turn): number {
  return Math.min(COLUMN - 12, 6 + 5 * Math.log2(1 + turn.n_action));
}

function paintTurn(brush: CanvasRenderingContext2D, what: Painting, { turn, ...spot }: Spot): void {
  const [x, y] = what.at({ turn, ...spot });
  const value = what.value(turn);
  const none = !turn.trained || turn.credit === null || turn.credit === 0;
  brush.fillStyle = value === null ? (what.dark ? "#3a3a3a" : "#e4e4e4") : shade(value / what.most, what.dark);
  brush.fillRect(x, y + 1, wide(turn), LANE - 2);
  brush.strokeStyle = what.dark ? "#9a9a9a" : "#6a6a6a";
  brush.lineWidth = 0.6;
  brush.strokeRect(x, y + 1, wide(turn), LANE - 2);
  if (none) {
    brush.beginPath();
    brush.moveTo(x, y + LANE - 1);
    brush.lineTo(x + wide(turn), y + 1);
    brush.stroke();
  }
  if (!turn.valid) {
    brush.fillStyle = what.dark ? "#ff8f8f" : "#b00020";
    brush.fillRect(x, y + LANE - 3, wide(turn), 2);
  }
  if (turn.id === what.turn) {
    brush.strokeStyle = what.dark ? "#ffffff" : "#000000";
    brush.lineWidth = 2.5;
    brush.strokeRect(x - 2, y - 1, wide(turn) + 4, LANE + 2);
  }
}

/** Blue above zero, orange below, the ground colour at zero: told apart by everybody, in both themes. */
export function shade(share: number, dark: boolean): string {
  const size = Math.min(1, Math.abs(share));
  const ground = dark ? [48, 48, 48] : [246, 246, 246];
  const full = share >= 0 ? (dark ? [92, 168, 255] : [20, 98, 190]) : dark ? [255, 156, 64] : [201, 90, 0];
  const mixed = ground.map((from, place) => Math.round(from + ((full[place] ?? from) - from) * Math.sqrt(size)));
  return `rgb(${mixed.join(",")})`;
}
