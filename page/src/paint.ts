// The strokes of the tree on its canvas, in batches of one style: ten thousand turns are painted within a frame.
import type { ZoomTransform } from "d3-zoom";
import type { Forest, Spot } from "./forest";
import type { Turn } from "./views";

export const COLUMN = 46;
export const LANE = 14;
export const GAP = 8;
const SHADES = 32; // on each side of zero
const PLAIN = 0.3; // below this zoom, outlines and curves are too fine to be seen
const UNSEEN = 0.1; // below this zoom, a line is too thin to be seen
const TOGETHER = 256; // lines in one stroke

export interface Painting {
  trees: Forest; turn: number | null; chosen: Set<number>; value: (turn: Turn) => number | null;
  most: number; dark: boolean; at: (spot: Spot) => [number, number]; view: ZoomTransform;
}

export function paintTree(element: HTMLCanvasElement, what: Painting): void {
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
  const near = what.trees.drawn.filter((spot) => {
    const [left, top] = what.view.apply(what.at(spot));
    return left > -4 * COLUMN * k && left < width + COLUMN * k && top > -height && top < 2 * height;
  });
  paintLinks(brush, what, near);
  paintTurns(brush, what, near.filter((spot) => {
    const top = what.view.applyY(what.at(spot)[1]);
    return top > -2 * LANE * k && top < height + LANE * k;
  }));
}

function paintLinks(brush: CanvasRenderingContext2D, what: Painting, spots: Spot[]): void {
  const draw = ({ spot, before }: Link) => {
    const [x, y] = what.at(spot);
    const [left, top] = what.at(before);
    brush.moveTo(left + wide(before), top + LANE / 2);
    if (what.view.k < PLAIN) brush.lineTo(x, y + LANE / 2);
    else brush.bezierCurveTo(x - 8, top + LANE / 2, left + COLUMN, y + LANE / 2, x, y + LANE / 2);
  };
  const links = spots.flatMap((spot): Link[] => {
    const before = what.trees.spots[spot.turn.parent];
    return before ? [{ spot, before }] : [];
  });
  brush.lineWidth = 1;
  brush.strokeStyle = what.dark ? "#565656" : "#bcbcbc";
  if (what.view.k >= UNSEEN) stroke(brush, links.filter(({ spot }) => !what.chosen.has(spot.turn.id)), draw);
  brush.lineWidth = Math.max(2, 1 / what.view.k);
  brush.strokeStyle = what.dark ? "#e8e8e8" : "#222222";
  stroke(brush, links.filter(({ spot }) => what.chosen.has(spot.turn.id)), draw);
  if (what.turn !== null) paintPlans(brush, what, spots);
}

interface Link { spot: Spot; before: Spot }

/** Dashed lines from the plan of the chosen turn to it, and from it to the turns whose plan it is. */
function paintPlans(brush: CanvasRenderingContext2D, what: Painting, spots: Spot[]): void {
  brush.strokeStyle = what.dark ? "#c9a0ff" : "#7a3fc0";
  brush.setLineDash([3, 3]);
  stroke(brush, spots.filter(({ turn }) => turn.plan >= 0 && (turn.id === what.turn || turn.plan === what.turn)), (spot) => {
    const plan = what.trees.spots[spot.turn.plan];
    if (!plan) return;
    const [x, y] = what.at(spot);
    const [left, top] = what.at(plan);
    brush.moveTo(left + wide(plan) / 2, top + LANE);
    brush.quadraticCurveTo(left, (top + y) / 2 + LANE, x, y + LANE / 2);
  });
  brush.setLineDash([]);
}

function paintTurns(brush: CanvasRenderingContext2D, what: Painting, spots: Spot[]): void {
  const fills = new Map<string, Spot[]>();
  for (const spot of spots) {
    const value = mean(spot.turns.map(what.value));
    const fill = value === null ? (what.dark ? "#3a3a3a" : "#e4e4e4") : shade(Math.round((value / what.most) * SHADES) / SHADES, what.dark);
    const same = fills.get(fill);
    if (same) same.push(spot);
    else fills.set(fill, [spot]);
  }
  for (const [fill, same] of fills) {
    brush.fillStyle = fill;
    for (const spot of same) brush.fillRect(...what.at(spot), wide(spot), LANE);
  }
  if (what.view.k >= PLAIN) {
    brush.strokeStyle = what.dark ? "#9a9a9a" : "#6a6a6a";
    brush.lineWidth = 0.6;
    stroke(brush, spots, (spot) => {
      const [x, y] = what.at(spot);
      brush.rect(x, y, wide(spot), LANE);
      if (spot.turns.some((turn) => turn.trained && turn.credit !== null && turn.credit !== 0)) return;
      brush.moveTo(x, y + LANE); // no gradient
      brush.lineTo(x + wide(spot), y);
    });
    paintFolds(brush, what, spots.filter((spot) => spot.turns.length > 1));
  }
  brush.fillStyle = what.dark ? "#ff8f8f" : "#b00020";
  for (const spot of spots.filter(({ turns }) => turns.some((turn) => !turn.valid))) {
    const [x, y] = what.at(spot);
    brush.fillRect(x, y + LANE - 2, wide(spot), 2);
  }
  if (what.view.k >= PLAIN) paintEnds(brush, what, spots);
  const own = what.turn === null ? undefined : what.trees.spots[what.turn];
  if (own) {
    const [x, y] = what.at(own);
    brush.strokeStyle = what.dark ? "#ffffff" : "#000000";
    brush.lineWidth = 2.5;
    brush.strokeRect(x - 2, y - 2, wide(own) + 4, LANE + 4);
  }
}

/** What became of the attempts that end in a turn, beside it. */
function paintEnds(brush: CanvasRenderingContext2D, what: Painting, spots: Spot[]): void {
  brush.font = "10px system-ui";
  brush.textAlign = "left";
  brush.fillStyle = what.dark ? "#ececec" : "#1c1c1c";
  for (const spot of spots) {
    const end = spot.turns.map((turn) => what.trees.ends.get(turn.id)).find((text) => text !== undefined);
    const [x, y] = what.at(spot);
    if (end) brush.fillText(end, x + wide(spot) + 4, y + LANE - 4);
  }
}

/** How many turns a folded stretch has, on sheets that look out behind it. */
function paintFolds(brush: CanvasRenderingContext2D, what: Painting, spots: Spot[]): void {
  stroke(brush, spots, (spot) => {
    const [x, y] = what.at(spot);
    for (const out of [2, 4]) {
      brush.moveTo(x + out, y - out);
      brush.lineTo(x + wide(spot) + out, y - out);
      brush.lineTo(x + wide(spot) + out, y + LANE - out);
    }
  });
  brush.font = "9px system-ui";
  brush.textAlign = "center";
  brush.lineWidth = 2;
  brush.strokeStyle = what.dark ? "#181818" : "#ffffff";
  brush.fillStyle = what.dark ? "#ffffff" : "#000000";
  for (const spot of spots) {
    const [x, y] = what.at(spot);
    brush.strokeText(String(spot.turns.length), x + wide(spot) / 2, y + LANE - 4);
    brush.fillText(String(spot.turns.length), x + wide(spot) / 2, y + LANE - 4);
  }
}

function mean(values: (number | null)[]): number | null {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

function stroke<Item>(brush: CanvasRenderingContext2D, items: Item[], draw: (item: Item) => void): void {
  for (let first = 0; first < items.length; first += TOGETHER) {
    brush.beginPath();
    items.slice(first, first + TOGETHER).forEach(draw);
    brush.stroke();
  }
}

function wide({ turns }: Spot): number {
  return Math.min(COLUMN - 12, 6 + 5 * Math.log2(1 + turns.reduce((sum, turn) => sum + turn.n_action, 0)));
}

/** Blue above zero, orange below, the ground colour at zero: told apart by everybody, in both themes. */
export function shade(share: number, dark: boolean): string {
  const size = Math.min(1, Math.abs(share));
  const ground = dark ? [48, 48, 48] : [246, 246, 246];
  const full = share >= 0 ? (dark ? [92, 168, 255] : [20, 98, 190]) : dark ? [255, 156, 64] : [201, 90, 0];
  const mixed = ground.map((from, place) => Math.round(from + ((full[place] ?? from) - from) * Math.sqrt(size)));
  return `rgb(${mixed.join(",")})`;
}
