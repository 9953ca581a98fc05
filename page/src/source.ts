// Where the page gets its views: from the JSON in its own file, or from the server that it came from.
import type { Columns, Episode, GroupView, Hits, Overview, Reasons, Turn, TurnWords } from "./views";

const held = new Map<string, HTMLScriptElement>();
for (const element of document.querySelectorAll<HTMLScriptElement>("script[data-name]")) {
  held.set(element.dataset["name"] ?? "", element);
}

/** Whether the page is a file of its own, which holds a choice of groups. */
export const alone = held.has("overview");

const parsed = new Map<string, unknown>();

function own<View>(name: string): View | null {
  const element = held.get(name);
  if (!element) return null;
  if (!parsed.has(name)) parsed.set(name, JSON.parse(element.textContent ?? "null"));
  return parsed.get(name) as View;
}

async function asked<View>(address: string): Promise<View | null> {
  const answer = await fetch(address, { headers: { accept: "application/json" } });
  if (answer.status === 204) return null;
  if (!answer.ok) throw new Error(await answer.text());
  return (await answer.json()) as View;
}

/** The overview; null when it is still the one with the given stamp. */
export async function overview(stamp = ""): Promise<Overview | null> {
  if (alone) return stamp ? null : own<Overview>("overview");
  return asked<Overview>(`overview?stamp=${encodeURIComponent(stamp)}`);
}

/** Whether a group can be opened. */
export function holds(step: number, uid: string): boolean {
  return !alone || held.has(`group/${step}/${uid}`);
}

/** The trees of a group; an error says in a sentence why they cannot be shown. */
export async function group(step: number, uid: string): Promise<GroupView> {
  const found = await part<Omit<GroupView, "turns" | "episodes"> & { turns: Columns<Turn>; episodes: Columns<Episode> }>("group", step, uid);
  return { ...found, turns: rows<Turn>(found.turns), episodes: rows<Episode>(found.episodes) };
}

/** What was said in some turns of a group, or in more of them. */
export async function words(step: number, uid: string, turns: number[]): Promise<TurnWords[]> {
  return (await part<{ turns: TurnWords[] }>("words", step, uid, `&turns=${turns.join(",")}`)).turns;
}

/** What the estimators say about the credit of a group. */
export async function why(step: number, uid: string): Promise<Reasons> {
  return part<Reasons>("why", step, uid);
}

async function part<View>(name: string, step: number, uid: string, more = ""): Promise<View> {
  const found = alone ? own<View>(`${name}/${step}/${uid}`) : await asked<View>(`${name}?step=${step}&uid=${encodeURIComponent(uid)}${more}`);
  if (!found) throw new Error("This file has no room for this group; `verl-hier view` of the run shows it.");
  return found;
}

function rows<Row extends { id: number }>(columns: Columns<Row>): Row[] {
  const entries = Object.entries<unknown[]>(columns);
  const ids = entries[0]?.[1] ?? [];
  return ids.map((_, id) => Object.fromEntries([["id", id], ...entries.map(([name, values]) => [name, values[id]])]) as Row);
}

/** Turns that said or were told some words; in a file of its own, those of the groups that it holds. */
export async function search(words: string): Promise<Hits> {
  if (!alone) return (await asked<Hits>(`search?words=${encodeURIComponent(words)}`)) ?? { words, many: 0, hits: [] };
  const wanted = words.toLowerCase();
  const hits: Hits["hits"] = [];
  for (const name of held.keys()) {
    const [, step = "", uid = ""] = /^words\/(\d+)\/(.*)$/s.exec(name) ?? [];
    const found = step ? own<{ turns: TurnWords[] }>(name) : null;
    for (const turn of found?.turns ?? []) {
      const texts = [turn.text, ...turn.messages.map((message) => message.content)];
      if (texts.some((text) => text.toLowerCase().includes(wanted))) hits.push({ step: Number(step), uid, node: turn.id });
    }
  }
  return { words, many: hits.length, hits: hits.slice(0, 500) };
}
