// The turns of a group as trees: who is above, below and beside whom, and where each is drawn.
import { hierarchy, tree } from "d3-hierarchy";
import type { Episode, GroupView, Turn } from "./views";

export interface Spot { turn: Turn; depth: number; row: number; lane: number }

export interface Forest {
  children: Map<number, number[]>;
  spots: Spot[];
  lanes: string[];
  rows: [number, number];
  deepest: number;
  leaves: number[];
  ret: Map<number, number>;
}

interface Item { id: number; below: Item[] }

/** Layout and links of a group. */
export function forest(group: GroupView): Forest {
  const children = new Map<number, number[]>();
  const items = group.turns.map((turn): Item => ({ id: turn.id, below: [] }));
  const top: Item = { id: -1, below: [] };
  for (const turn of group.turns) {
    const item = items[turn.id];
    if (!item) continue;
    (items[turn.parent] ?? top).below.push(item);
    const beside = children.get(turn.parent);
    if (beside) beside.push(turn.id);
    else children.set(turn.parent, [turn.id]);
  }
  const levels = [...new Set(group.turns.map((turn) => `${turn.level} ${turn.role}`))].sort((a, b) =>
    a.localeCompare(b, "en", { numeric: true }),
  );
  const laid = tree<Item>().nodeSize([1, 1]).separation(() => 1)(hierarchy(top, (item) => item.below));
  const spots: Spot[] = [];
  laid.each((node) => {
    const turn = group.turns[node.data.id];
    if (turn) spots.push({ turn, depth: node.depth - 1, row: node.x, lane: levels.indexOf(`${turn.level} ${turn.role}`) });
  });
  spots.sort((a, b) => a.turn.id - b.turn.id);
  const rows = spots.map((spot) => spot.row);
  const leaves = spots.filter((spot) => !children.has(spot.turn.id)).sort((a, b) => a.row - b.row);
  return {
    children, spots, leaves: leaves.map((spot) => spot.turn.id),
    lanes: levels.map((name) => name.replace(/^(\d+) (.*)$/s, "level $1, $2")),
    rows: [rows.reduce((a, b) => Math.min(a, b), 0), rows.reduce((a, b) => Math.max(a, b), 0)],
    deepest: spots.reduce((most, spot) => Math.max(most, spot.depth), 0), ret: returns(group),
  };
}

/** Best return of the complete episodes through each turn. */
function returns(group: GroupView): Map<number, number> {
  const found = new Map<number, number>();
  for (const episode of group.episodes.filter(complete)) {
    for (const turn of above(group, episode.leaf)) {
      found.set(turn, Math.max(found.get(turn) ?? -Infinity, episode.ret));
    }
  }
  return found;
}

export function complete(episode: Episode): boolean {
  return episode.leaf >= 0 && (episode.status === "finished" || episode.status === "truncated");
}

/** Turns from the first one down to a turn. */
export function above(group: GroupView, turn: number): number[] {
  const found: number[] = [];
  for (let id = turn; id >= 0; id = group.turns[id]?.parent ?? -1) found.push(id);
  return found.reverse();
}

/** The path through a turn: on from it, along the best return, to a leaf. */
export function path(group: GroupView, trees: Forest, turn: number): number[] {
  const found = above(group, turn);
  for (let below = trees.children.get(turn); below?.length; ) {
    const [next] = [...below].sort((a, b) => (trees.ret.get(b) ?? -Infinity) - (trees.ret.get(a) ?? -Infinity));
    if (next === undefined) break;
    found.push(next);
    below = trees.children.get(next);
  }
  return found;
}

/** Complete episodes whose path runs through a turn. */
export function through(group: GroupView, turn: number): Episode[] {
  return group.episodes.filter((episode) => complete(episode) && above(group, episode.leaf).includes(turn));
}

/** The leaf with the best (or worst) return. */
export function extreme(group: GroupView, sign: 1 | -1): number | null {
  const [best] = group.episodes.filter(complete).sort((a, b) => sign * (b.ret - a.ret));
  return best ? best.leaf : null;
}
