// Where the page gets its views: from the JSON in its own file, or from the server that it came from.
import type { GroupView, Hits, Overview } from "./views";

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

/** A group; an error says in a sentence why it cannot be shown. */
export async function group(step: number, uid: string): Promise<GroupView> {
  const found = alone
    ? own<GroupView>(`group/${step}/${uid}`)
    : await asked<GroupView>(`group?step=${step}&uid=${encodeURIComponent(uid)}`);
  if (!found) throw new Error("This file has no room for this group; `verl-hier view` of the run shows it.");
  return found;
}

/** Turns that said or were told some words; in a file of its own, those of the groups that it holds. */
export async function search(words: string): Promise<Hits> {
  if (!alone) return (await asked<Hits>(`search?words=${encodeURIComponent(words)}`)) ?? { words, many: 0, hits: [] };
  const wanted = words.toLowerCase();
  const hits: Hits["hits"] = [];
  for (const name of held.keys()) {
    const found = name.startsWith("group/") ? own<GroupView>(name) : null;
    for (const turn of found?.turns ?? []) {
      const texts = [turn.text, ...turn.messages.map((message) => message.content)];
      if (found && texts.some((text) => text.toLowerCase().includes(wanted))) {
        hits.push({ step: found.step, uid: found.uid, node: turn.id });
      }
    }
  }
  return { words, many: hits.length, hits: hits.slice(0, 500) };
}
