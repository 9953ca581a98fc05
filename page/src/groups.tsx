// The groups of all steps in a table of which only the rows in sight exist, sorted, filtered and searched.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Virtualizer, elementScroll, observeElementOffset, observeElementRect } from "@tanstack/virtual-core";
import { go, link } from "./place";
import * as source from "./source";
import { Figure, Words } from "./text";
import type { Group, Hits, Overview } from "./views";

const ROW = 28;
const COLUMNS: [keyof Group, string][] = [
  ["step", "step"], ["title", "task"], ["episodes", "attempts"], ["mean", "mean return"], ["spread", "spread"], ["succeeded", "solved"],
  ["forks", "branches"], ["turns", "turns"], ["tokens", "tokens"], ["failed", "failed"], ["invalid", "invalid"], ["without_credit", "no gradient"],
];

export function Groups({ view, words }: { view: Overview; words: string }) {
  const [by, setBy] = useState<keyof Group>("step");
  const [down, setDown] = useState(false);
  const [hits, setHits] = useState<Hits | null>(null);
  const rows = useMemo(() => {
    const found = view.groups.filter((group) => fits(group, words));
    return found.sort((a, b) => (down ? -1 : 1) * order(a[by], b[by]));
  }, [view, words, by, down]);
  const sort = (name: keyof Group) => (name === by ? setDown(!down) : (setBy(name), setDown(name !== "title" && name !== "step")));
  return (
    <main>
      <form role="search" onSubmit={(event) => {
        event.preventDefault();
        const wanted = new FormData(event.currentTarget).get("words");
        if (wanted) void source.search(String(wanted)).then(setHits);
      }}>
        <label>
          Filter <input type="search" name="words" data-focus="search" value={words} placeholder="words of the task, step:3, is:failed"
            onInput={(event) => go({ page: "groups", words: event.currentTarget.value })} />
        </label>{" "}
        <button type="submit">Search in what was said</button>
      </form>
      {hits && <Found hits={hits} view={view} />}
      <p class="quiet">{rows.length.toLocaleString("en")} of {view.groups.length.toLocaleString("en")} groups{source.alone && "; those in grey have no tree in this file"}</p>
      <div class="head" role="row">
        {COLUMNS.map(([name, title]) => (
          <button type="button" key={name} class={`cell ${name}`} aria-sort={name !== by ? "none" : down ? "descending" : "ascending"} onClick={() => sort(name)}>
            {title}{name === by && (down ? " ↓" : " ↑")}
          </button>
        ))}
      </div>
      <Rows rows={rows} />
    </main>
  );
}

function Rows({ rows }: { rows: Group[] }) {
  const box = useRef<HTMLDivElement>(null);
  const [, again] = useState({});
  const list = useRef<Virtualizer<HTMLDivElement, HTMLDivElement> | null>(null);
  const options = {
    count: rows.length, getScrollElement: () => box.current, estimateSize: () => ROW, overscan: 20,
    scrollToFn: elementScroll, observeElementRect, observeElementOffset, onChange: () => again({}),
  };
  list.current ??= new Virtualizer<HTMLDivElement, HTMLDivElement>(options);
  list.current.setOptions(options);
  useEffect(() => list.current?._didMount(), []);
  useEffect(() => list.current?._willUpdate());
  return (
    <div class="rows" ref={box} role="table" aria-rowcount={rows.length} aria-label="groups">
      <div class="all" style={{ height: `${list.current.getTotalSize()}px` }}>
        {list.current.getVirtualItems().map((item) => {
          const group = rows[item.index];
          return group && (
            <div key={`${group.step}/${group.uid}`} class={source.holds(group.step, group.uid) ? "row" : "row absent"} role="row" aria-rowindex={item.index + 1} style={{ top: `${item.start}px` }}>
              {COLUMNS.map(([name]) => (
                <span role="cell" key={name} class={`cell ${name}`}>
                  {name === "title"
                    ? <a data-row={item.index} href={link({ page: "group", step: group.step, uid: group.uid, turn: null, part: "tree" })}><Words text={group.title} /></a>
                    : <Figure value={group[name] as number | null} />}
                </span>
              ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}

function Found({ hits, view }: { hits: Hits; view: Overview }) {
  const titles = new Map(view.groups.map((group) => [`${group.step}/${group.uid}`, group.title]));
  return (
    <section aria-label="found" aria-live="polite">
      <h2>{hits.many.toLocaleString("en")} turns with “<Words text={hits.words} />”</h2>
      <ul class="hits">
        {hits.hits.slice(0, 100).map((hit) => (
          <li key={`${hit.step}/${hit.uid}/${hit.node}`}>
            <a href={link({ page: "group", step: hit.step, uid: hit.uid, turn: hit.node, part: "path" })}>
              step {hit.step}, <Words text={titles.get(`${hit.step}/${hit.uid}`) ?? hit.uid} />, turn {hit.node}
            </a>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** Whether a group fits every word of a filter: `step:N`, `is:ALARM`, or a part of its task. */
function fits(group: Group, words: string): boolean {
  return words.toLowerCase().split(/\s+/).filter(Boolean).every((word) => {
    if (/^step:\d+$/.test(word)) return group.step === Number(word.slice(5));
    if (word.startsWith("is:")) return Number(group[word.slice(3) as keyof Group] ?? 0) > 0;
    return `${group.title} ${group.uid} ${group.source}`.toLowerCase().includes(word);
  });
}

function order(a: string | number | null, b: string | number | null): number {
  if (typeof a === "string" || typeof b === "string") return String(a).localeCompare(String(b), "en", { numeric: true });
  return (a ?? -Infinity) - (b ?? -Infinity);
}
