// The tree or trees of a group on a canvas, over the turns from left to right; ten thousand turns stay fluid.
import { useEffect, useMemo, useRef } from "preact/hooks";
import { select } from "d3-selection";
import { zoom, zoomIdentity, type ZoomTransform } from "d3-zoom";
import type { Forest, Spot, Stretch } from "./forest";
import { path } from "./forest";
import { COLUMN, GAP, LANE, paintTree } from "./paint";
import { Figure, figure, Words } from "./text";
import { useDark } from "./thumbnail";
import type { GroupView, Turn, TurnWords } from "./views";

export const COLOURS: Record<string, (turn: Turn) => number | null> = {
  credit: (turn) => turn.credit,
  entropy: (turn) => turn.mean_entropy,
  reward: (turn) => turn.reward,
  "log-prob difference": (turn) => turn.logprob_difference,
};

interface Props {
  group: GroupView; trees: Forest; turn: number | null; words: TurnWords | undefined; colour: string;
  onTurn: (turn: number) => void; onColour: (name: string) => void; onStretch: (which: Stretch[]) => void;
}

export function Tree({ group, trees, turn, words, colour, onTurn, onColour, onStretch }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const view = useRef<ZoomTransform>(zoomIdentity);
  const dark = useDark();
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
    const element = canvas.current;
    if (!element) return;
    const paint = () => paintTree(element, { trees, turn, chosen, value, most, dark, at, view: view.current });
    let waiting = false; // one painting a frame, however many events come
    const behaviour = zoom<HTMLCanvasElement, unknown>().scaleExtent([0.02, 4]).on("zoom", (event: { transform: ZoomTransform }) => {
      view.current = event.transform;
      if (!waiting) requestAnimationFrame(() => { waiting = false; paint(); });
      waiting = true;
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
    const hit = trees.drawn.find((spot) => {
      const [left, top] = at(spot);
      return x >= left && x <= left + COLUMN && y >= top - GAP / 2 && y <= top + LANE + GAP / 2;
    });
    if (!hit) return;
    if (hit.turn.id === turn) onStretch(trees.stretches.filter((each) => each.folded && each.turns[0] === hit.turn));
    else onTurn(hit.turn.id);
  };
  const now = turn === null ? null : group.turns[turn];
  const folded = turn === null ? 1 : trees.spots[turn]?.turns.length ?? 1;
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
        aria-label={`${group.turns.length} turns in ${trees.children.get(-1)?.length ?? 0} trees, ${trees.stretches.filter((each) => each.folded).length} stretches folded; arrow keys move between turns`}
      />
      <p class="said" aria-live="polite">
        {now ? (
          <>
            turn {now.id}: <Words text={`${now.role}, level ${now.level}`} />, {now.n_action} tokens, credit <Figure value={now.credit} signed />,
            entropy <Figure value={now.mean_entropy} />, reward <Figure value={now.reward} />
            {now.logprob_difference !== null && <>, log-prob difference <Figure value={now.logprob_difference} /></>}
            {!now.valid && <b class="bad"> not understood</b>}{!now.trained && <b> not trained</b>}
            {folded > 1 && <b>; it and the {folded - 1} turns after it are folded: o opens them</b>}
            {" "}<span class="quiet"><Words text={(words?.text ?? "").slice(0, 160)} /></span>
          </>
        ) : "No turn is chosen: press the right arrow key."}
      </p>
    </section>
  );
}
