// The frame of the page: what is shown where, and the keys.
import { render } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { effect, signal } from "@preact/signals";
import { extreme, forest, type Forest, type Stretch } from "./forest";
import { Groups } from "./groups";
import { Overview } from "./overview";
import { Path, spoken } from "./path";
import { go, link, place, type Part } from "./place";
import * as source from "./source";
import { Figure, Words } from "./text";
import { COLOURS, Tree } from "./tree";
import { Why } from "./why";
import type { GroupView, Overview as OverviewView, Reasons, TurnWords } from "./views";

const AGAIN = 5000;
const KEYS: [string, string][] = [
  ["1, 2", "the run at a glance; groups"], ["/", "filter the groups"], ["j, k", "next and previous link of a list"], ["n, p", "next and previous group"],
  ["→, ←", "next and previous turn on the path"], ["↓, ↑", "next and previous turn of a branch"], ["], [", "next and previous leaf"],
  ["b, w", "best and worst leaf"], ["o, O", "open or fold a stretch without branches; all of them"], ["c", "next colour"], ["t, s, y", "tree; what was said; why"], ["?", "this list"], ["Escape", "back"],
];

const shown = signal<OverviewView | null>(null);
const trouble = signal("");
const help = signal(false);

async function load(): Promise<void> {
  try {
    shown.value = (await source.overview(shown.value?.stamp)) ?? shown.value;
    trouble.value = "";
  } catch (error) {
    trouble.value = shown.value ? "The server does not answer; what is shown may be old." : String(error instanceof Error ? error.message : error);
  }
}

function Page() {
  const [here, setHere] = useState(place.value);
  const [view, setView] = useState(shown.value);
  const [said, setSaid] = useState(trouble.value);
  const [helping, setHelping] = useState(help.value);
  useEffect(() => effect(() => { setHere(place.value); setView(shown.value); setSaid(trouble.value); setHelping(help.value); }), []);
  useEffect(() => {
    document.title = here.page === "group" ? `step ${here.step}, ${here.uid}` : (view?.run.name ?? "verl-hier");
  }, [here, view]);
  return (
    <>
      <header>
        <h1><Words text={view?.run.name ?? "verl-hier"} /></h1>
        <nav aria-label="pages">
          <a href={link({ page: "overview" })} aria-current={here.page === "overview" ? "page" : undefined}>at a glance</a>
          <a href={link({ page: "groups", words: "" })} aria-current={here.page === "groups" ? "page" : undefined}>groups</a>
          <button type="button" onClick={() => (help.value = !help.value)} aria-expanded={helping}>keys (?)</button>
        </nav>
      </header>
      {helping && <Help />}
      {said && <p class="note" role="alert">{said}</p>}
      {!view && !said && <p class="quiet">loading…</p>}
      {view && here.page === "overview" && <Overview view={view} />}
      {view && here.page === "groups" && <Groups view={view} words={here.words} />}
      {view && here.page === "group" && <GroupPage key={`${here.step}/${here.uid}`} view={view} step={here.step} uid={here.uid} turn={here.turn} part={here.part} />}
    </>
  );
}

function Help() {
  return (
    <dialog open aria-label="keys">
      <dl class="keys">{KEYS.map(([key, what]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{what}</dd></div>)}</dl>
    </dialog>
  );
}

interface Here { view: OverviewView; step: number; uid: string; turn: number | null; part: Part }

function GroupPage({ view, step, uid, turn, part }: Here) {
  const [group, setGroup] = useState<GroupView | null>(null);
  const [words, setWords] = useState<ReadonlyMap<number, TurnWords>>(new Map());
  const [reasons, setReasons] = useState<Reasons | null>(null);
  const explained = useRef(false); // asked for once, when the first turn is chosen
  const [said, setSaid] = useState("");
  const refused = (error: unknown) => setSaid(error instanceof Error ? error.message : String(error));
  const [colour, setColour] = useState("credit");
  const frame = useRef<HTMLElement>(null);
  useEffect(() => {
    source.group(step, uid).then(setGroup, refused);
  }, [step, uid]);
  const [turned, setTurned] = useState<ReadonlySet<number>>(new Set());
  const trees = useMemo(() => (group ? forest(group, turned) : null), [group, turned]);
  const at = group && turn !== null && turn < group.turns.length ? turn : null;
  const turnOver = (which: Stretch[]) => setTurned((before) => {
    const after = new Set(before);
    for (const first of which.map((each) => each.turns[0]?.id ?? -1)) if (!after.delete(first)) after.add(first);
    return after;
  });
  useLayoutEffect(() => { // a link may lead into a folded stretch
    const spot = at === null ? undefined : trees?.spots[at];
    if (trees && spot && spot.turn.id !== at) turnOver(trees.stretches.filter((each) => each.folded && each.turns.includes(spot.turn)));
  }, [trees, at]);
  useEffect(() => {
    if (!group || !trees || at === null) return;
    const missing = spoken(group, trees, at).filter((id) => !words.has(id));
    if (missing.length) {
      source.words(step, uid, missing).then((found) => setWords((held) => new Map([...held, ...found.map((each) => [each.id, each] as const)])), refused);
    }
    if (!explained.current) source.why(step, uid).then(setReasons, refused);
    explained.current = true;
  }, [group, trees, at]);
  useEffect(() => {
    if (group) frame.current?.querySelector<HTMLElement>(`[data-focus="${part}"]`)?.focus({ preventScroll: part === "tree" });
    if (group && part === "path") frame.current?.querySelector(".turn.chosen")?.scrollIntoView({ block: "nearest" });
  }, [group, part]);
  useLayoutEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const now = place.value; // not what was drawn last: keys may come faster
      if (typing(event) || now.page !== "group") return;
      const { part } = now;
      const at = group && now.turn !== null && now.turn < group.turns.length ? now.turn : null;
      const neighbour = event.key === "n" ? 1 : event.key === "p" ? -1 : 0;
      const number = view.groups.findIndex((each) => each.step === step && each.uid === uid);
      const next = neighbour ? view.groups[(number + neighbour + view.groups.length) % view.groups.length] : undefined;
      if (next) go({ page: "group", step: next.step, uid: next.uid, turn: null, part: "tree" });
      if (!group || !trees) return;
      if (event.key === "c") setColour((shown) => { const names = Object.keys(COLOURS); return names[(names.indexOf(shown) + 1) % names.length] ?? "credit"; });
      const stretch = trees.stretches.find((each) => event.key === "o" && each.turns.some((own) => own.id === at));
      if (stretch) go({ page: "group", step, uid, turn: stretch.turns[0]?.id ?? at, part });
      if (stretch) turnOver([stretch]);
      if (event.key === "O") turnOver(all(trees));
      const parts: Record<string, Part> = { t: "tree", s: "path", y: "why" };
      const to = parts[event.key];
      if (to) go({ page: "group", step, uid, turn: at ?? 0, part: to });
      const moved = turnOf(event.key, group, trees, at);
      if (moved !== null) {
        event.preventDefault();
        go({ page: "group", step, uid, turn: moved, part });
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [view, group, trees, step, uid]);
  const about = view.groups.find((each) => each.step === step && each.uid === uid);
  return (
    <main ref={frame} class="group">
      <h2>step {step}: <Words text={about?.title ?? uid} /></h2>
      {about && <p class="quiet">{about.episodes} attempts, returns with mean <Figure value={about.mean} /> and spread <Figure value={about.spread} />, {about.forks} branches, {about.turns} turns
        {about.flat > 0 && <b class="bad">; one return, so it teaches nothing</b>}{about.singleton > 0 && <b class="bad">; one trained attempt, so nothing is compared</b>}{about.failed > 0 && <b class="bad">; {about.failed} failed</b>}
        {others(view, step, uid, about.title)}
      </p>}
      {said && <p class="note" role="alert"><Words text={said} /></p>}
      {!group && !said && <p class="quiet">loading…</p>}
      {group && trees && (
        <>
          <Tree group={group} trees={trees} turn={at} words={at === null ? undefined : words.get(at)} colour={colour} onColour={setColour} onTurn={(to) => go({ page: "group", step, uid, turn: to, part })} onStretch={turnOver} />
          <p class="bar" role="group" aria-label="leaves">
            {([["best leaf", 1], ["worst leaf", -1]] as const).map(([name, sign]) => (
              <button type="button" key={name} onClick={() => { const to = extreme(group, sign); if (to !== null) go({ page: "group", step, uid, turn: to, part }); }}>{name}</button>
            ))}
            {all(trees).length > 0 && <button type="button" onClick={() => turnOver(all(trees))}>{trees.stretches.some((each) => each.folded) ? "open" : "fold"} stretches without branches</button>}
          </p>
          {at !== null && (
            <div class="columns two">
              <Path group={group} trees={trees} turn={at} words={words} onTurn={(to) => go({ page: "group", step, uid, turn: to, part: "path" })} />
              <Why group={group} reasons={reasons} turn={at} />
            </div>
          )}
        </>
      )}
    </main>
  );
}

/** Links to the groups of other steps whose task has the same words; where there are none, nothing. */
function others(view: OverviewView, step: number, uid: string, title: string) {
  const found = view.groups.filter((each) => each.title === title && !(each.step === step && each.uid === uid));
  if (!found.length) return ".";
  return <>. A task in the same words:{found.slice(0, 20).map((each) => <a class="apart" key={`${each.step} ${each.uid}`} href={link({ page: "group", step: each.step, uid: each.uid, turn: null, part: "tree" })}>step {each.step}</a>)}</>;
}

/** What is turned over with all stretches: those that are folded, or else those that attempts share. */
function all(trees: Forest): Stretch[] {
  const folded = trees.stretches.filter((each) => each.folded);
  return folded.length ? folded : trees.stretches.filter((each) => each.shared);
}

/** The turn that a key leads to; null for another key, or where there is none. */
function turnOf(key: string, group: GroupView, trees: Forest, at: number | null): number | null {
  if (key === "b" || key === "w") return extreme(group, key === "b" ? 1 : -1);
  const first = trees.children.get(-1)?.[0] ?? null;
  if (at === null) return key.startsWith("Arrow") || key === "]" || key === "[" ? first : null;
  const parent = group.turns[at]?.parent ?? -1;
  if (key === "ArrowLeft") return trees.spots[parent]?.turn.id ?? null;
  if (key === "ArrowRight") return trees.children.get(trees.spots[at]?.turns.slice(-1)[0]?.id ?? at)?.[0] ?? null;
  const list = key.startsWith("Arrow") ? trees.children.get(parent) ?? [] : trees.leaves;
  const moves: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, "]": 1, "[": -1 };
  const move = moves[key];
  if (move === undefined || !list.length) return null;
  const place = list.indexOf(at);
  return list[(Math.max(place, 0) + (place < 0 ? 0 : move) + list.length) % list.length] ?? null;
}

function typing(event: KeyboardEvent): boolean {
  return event.ctrlKey || event.metaKey || event.altKey || event.target instanceof HTMLInputElement;
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    if (help.value) help.value = false;
    else if (document.activeElement instanceof HTMLInputElement) document.activeElement.blur();
    else {
      const here = place.value;
      const back = here.page === "group" && here.part !== "tree";
      if (back) go({ ...here, part: "tree" });
      else go(here.page === "group" ? { page: "groups", words: "" } : { page: "overview" });
    }
  }
  if (typing(event)) return;
  if (event.key === "?") help.value = !help.value;
  if (event.key === "1") go({ page: "overview" });
  if (event.key === "2" || event.key === "/") {
    event.preventDefault();
    if (place.value.page !== "groups") go({ page: "groups", words: "" });
    if (event.key === "/") setTimeout(() => document.querySelector<HTMLElement>('[data-focus="search"]')?.focus(), 50);
  }
  if (event.key === "j" || event.key === "k") {
    const links = [...document.querySelectorAll<HTMLElement>("main a[href]")];
    const now = links.indexOf(document.activeElement as HTMLElement);
    links[event.key === "j" ? Math.min(now + 1, links.length - 1) : Math.max(now - 1, 0)]?.focus();
  }
});

const root = document.getElementById("page");
if (root) render(<Page />, root);
async function follow(): Promise<void> {
  await load();
  if (!source.alone) setTimeout(() => void follow(), shown.value?.unread && !trouble.value ? 0 : AGAIN);
}

void follow();
