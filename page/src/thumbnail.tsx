// A tree of a group drawn small: its turns in the colour of their credit, and at each leaf what became of the attempt.
import { useEffect, useMemo, useState } from "preact/hooks";
import { ending, forest } from "./forest";
import { shade } from "./paint";
import { link } from "./place";
import { Words } from "./text";
import type { GroupView, Small, Turn } from "./views";

const WIDE = 18;
const TALL = 12;
const ACROSS = 24;
const DOWN = 17;
const LABEL = 78; // room for a leaf's words
const MOST_ROWS = 9; // above, what became of the attempts is too small to be read

export function useDark(): boolean {
  const [dark, setDark] = useState(matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return dark;
}

export function Thumbnail({ tree, dark }: { tree: Small; dark: boolean }) {
  const where = link({ page: "group", step: tree.step, uid: tree.uid, turn: null, part: "tree" });
  const won = tree.leaves?.filter(([, , success]) => success).length ?? 0;
  return (
    <li>
      <a href={where} data-tree={tree.uid}>
        <b><Words text={tree.why} /></b>
        <Words text={tree.title.slice(0, 90)} /> <span class="quiet">(step {tree.step}, {tree.episodes} attempts{tree.leaves && `, ${won} won`})</span>
        {tree.parent ? <Picture tree={tree} dark={dark} /> : <span class="quiet"> {tree.turns.toLocaleString("en")} turns, too many for a small picture</span>}
      </a>
    </li>
  );
}

function Picture({ tree, dark }: { tree: Small; dark: boolean }) {
  const laid = useMemo(() => forest(group(tree), new Set()), [tree]);
  const most = Math.max(1e-12, ...(tree.credit ?? []).map((value) => Math.abs(value ?? 0)));
  const [first, last] = laid.rows;
  const labelled = last - first < MOST_ROWS;
  const at = (depth: number, row: number): [number, number] => [2 + depth * ACROSS, 2 + (row - first) * DOWN];
  const width = at(laid.deepest, 0)[0] + WIDE + (labelled ? LABEL : 4);
  const ends = new Map((tree.leaves ?? []).map(([leaf, ret, success]) => [leaf, ending(success, ret)]));
  const said = [...ends.values()];
  return (
    <svg viewBox={`0 0 ${Math.max(width, 320)} ${Math.max(at(0, last)[1] + TALL + 2, 90)}`} preserveAspectRatio="xMinYMin meet" role="img" aria-label={`a tree of ${tree.turns} turns; its attempts: ${said.slice(0, 12).join(", ")}`}>
      {laid.drawn.map((spot) => {
        const above = laid.spots[spot.turn.parent];
        const [x, y] = at(spot.depth, spot.row);
        const [left, top] = above ? at(above.depth, above.row) : [0, 0];
        return above && <path key={`edge ${spot.turn.id}`} class="edge" d={`M${left + WIDE} ${top + TALL / 2}L${x} ${y + TALL / 2}`} />;
      })}
      {laid.drawn.map((spot) => {
        const [x, y] = at(spot.depth, spot.row);
        const known = spot.turns.map((turn) => turn.credit).filter((value) => value !== null);
        const value = known.length ? known.reduce((sum, each) => sum + each, 0) / known.length : null;
        const end = spot.turns.map((turn) => ends.get(turn.id)).find((text) => text !== undefined);
        return (
          <g key={spot.turn.id}>
            <rect class={value === null ? "blank" : "box"} x={x} y={y} width={WIDE} height={TALL} {...(value === null ? {} : { fill: shade(value / most, dark) })} data-credit={value ?? ""} />
            {labelled && end && <text x={x + WIDE + 5} y={y + TALL - 2}>{end}</text>}
          </g>
        );
      })}
    </svg>
  );
}

/** What `forest` lays out, of the little that is known. */
function group(tree: Small): GroupView {
  const turns = (tree.parent ?? []).map((parent, id) => ({
    id, parent, level: tree.level?.[id] ?? 0, role: "", credit: tree.credit?.[id] ?? null,
  }) as Turn);
  return { step: tree.step, uid: tree.uid, title: tree.title, episodes: [], turns };
}
