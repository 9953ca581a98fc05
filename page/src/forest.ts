// The turns of a group as trees: who is above, below and beside whom, and where each is drawn.
import { hierarchy, tree } from "d3-hierarchy";
import type { Episode, GroupView, Turn } from "./views";

const FOLDED = 3; // turns that a stretch has to have

/** Where a turn is drawn, or the first one of a folded stretch with all of its turns. */
export interface Spot { turn: Turn; turns: Turn[]; depth: number; row: number; lane: number }

/** Turns of one lane, each followed by one turn alone: with the last one the attempts go on together. */
export interface Stretch { turns: Turn[]; shared: boolean; folded: boolean }

export interface Forest {
  children: Map<number, number[]>;
  spots: Spot[]; // of each turn by its number; those of a folded stretch have one together
  drawn: Spot[];
  stretches: Stretch[];
  lanes: string[];
  rows: [number, number];
  deepest: number;
  leaves: number[];
  ret: Map<number, number>;
  ends: Map<number, string>; // what became of the attempts, by their last turns: won 1.00
}

interface Item { turns: Turn[]; below: Item[] }

/**
 * Layout and links of a group. Stretches that several attempts share are folded.
 *
 * `turned` are the first turns of stretches with which it is the other way round.
 */
export function forest(group: GroupView, turned: ReadonlySet<number>): Forest {
  const children = new Map<number, number[]>();
  for (const turn of group.turns) {
    const beside = children.get(turn.parent);
    if (beside) beside.push(turn.id);
    else children.set(turn.parent, [turn.id]);
  }
  const found = stretches(group, children, turned);
  const within = new Map(found.filter((each) => each.folded).flatMap((each) => each.turns.map((turn) => [turn.id, each.turns] as const)));
  const top: Item = { turns: [], below: [] };
  const items: Item[] = [];
  for (const turn of group.turns) {
    const turns = within.get(turn.id) ?? [turn];
    const first = turns[0] === turn ? undefined : items[turns[0]?.id ?? -1];
    const item = first ?? { turns, below: [] };
    if (!first) (items[turn.parent] ?? top).below.push(item);
    items[turn.id] = item;
  }
  const levels = [...new Set(group.turns.map(lane))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const laid = tree<Item>().nodeSize([1, 1]).separation(() => 1)(hierarchy(top, (item) => item.below));
  const drawn: Spot[] = [];
  const spots: Spot[] = [];
  laid.each((node) => {
    const { turns } = node.data;
    const [turn] = turns;
    if (!turn) return;
    const spot = { turn, turns, depth: node.depth - 1, row: node.x, lane: levels.indexOf(lane(turn)) };
    drawn.push(spot);
    for (const each of turns) spots[each.id] = spot;
  });
  const rows = drawn.map((spot) => spot.row);
  const row = (id: number) => spots[id]?.row ?? 0;
  return {
    children, spots, drawn, stretches: found,
    leaves: group.turns.map((turn) => turn.id).filter((id) => !children.has(id)).sort((a, b) => row(a) - row(b)),
    lanes: levels.map((name) => name.replace(/^(\d+) (.*)$/s, "level $1, $2")),
    rows: [rows.reduce((a, b) => Math.min(a, b), 0), rows.reduce((a, b) => Math.max(a, b), 0)],
    deepest: drawn.reduce((most, spot) => Math.max(most, spot.depth), 0), ret: returns(group),
    ends: new Map(group.episodes.filter(complete).filter((each) => !children.has(each.leaf)).map((each) => [each.leaf, ending(each.success, each.ret)])),
  };
}

/** What became of an attempt, in a word and its return. */
export function ending(success: boolean | null, ret: number): string {
  const word = success === null ? "return" : success ? "won" : "lost";
  return `${word} ${ret < 0 ? "−" : ""}${Math.abs(ret).toFixed(2)}`;
}

function lane(turn: Turn): string {
  return `${turn.level} ${turn.role}`;
}

/** The stretches that can be folded. A turn has a higher number than the one before it. */
function stretches(group: GroupView, children: Map<number, number[]>, turned: ReadonlySet<number>): Stretch[] {
  const leaves: number[] = group.turns.map((turn) => (children.has(turn.id) ? 0 : 1));
  for (const turn of [...group.turns].reverse()) {
    if (turn.parent >= 0) leaves[turn.parent] = (leaves[turn.parent] ?? 0) + (leaves[turn.id] ?? 0);
  }
  const runs = new Map<number, Turn[]>(); // by their last turn
  for (const turn of group.turns) {
    if (children.get(turn.id)?.length !== 1) continue;
    const before = runs.get(turn.parent);
    const run = before?.[0] && lane(before[0]) === lane(turn) ? before : [];
    run.push(turn);
    if (run === before) runs.delete(turn.parent);
    runs.set(turn.id, run);
  }
  return [...runs.values()].filter((turns) => turns.length >= FOLDED).map((turns) => {
    const first = turns[0]?.id ?? -1;
    const shared = (leaves[first] ?? 0) > 1;
    return { turns, shared, folded: shared !== turned.has(first) };
  });
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
