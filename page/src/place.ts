// Where the reader is: every place has a link, and the link is all there is to say it.
import { computed, signal } from "@preact/signals";

export type Part = "tree" | "path" | "why";
export type Place =
  | { page: "overview" }
  | { page: "groups"; words: string }
  | { page: "group"; step: number; uid: string; turn: number | null; part: Part };

const PARTS: readonly string[] = ["tree", "path", "why"];
const hash = signal(location.hash);
addEventListener("hashchange", () => (hash.value = location.hash));

function read(text: string): Place {
  const [page = "", ...rest] = text.replace(/^#\/?/, "").split("/").map(decoded);
  if (page === "groups") return { page, words: rest[0] ?? "" };
  if (page === "group" && /^\d+$/.test(rest[0] ?? "")) {
    const turn = /^\d+$/.test(rest[2] ?? "") ? Number(rest[2]) : null;
    const part = PARTS.includes(rest[3] ?? "") ? (rest[3] as Part) : "tree";
    return { page, step: Number(rest[0]), uid: rest[1] ?? "", turn, part };
  }
  return { page: "overview" };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const place = computed(() => read(hash.value));

/** The link of a place. */
export function link(to: Place): string {
  if (to.page === "overview") return "#/";
  if (to.page === "groups") return `#/groups${to.words ? `/${encodeURIComponent(to.words)}` : ""}`;
  const turn = to.turn === null ? "" : `/${to.turn}${to.part === "tree" ? "" : `/${to.part}`}`;
  return `#/group/${to.step}/${encodeURIComponent(to.uid)}${turn}`;
}

/** Go to a place; a step within a group, or of a filter, replaces the entry of the history, so that Back leaves it. */
export function go(to: Place): void {
  const from = place.value;
  const steps = from.page === "group" && to.page === "group" && from.step === to.step && from.uid === to.uid;
  if (steps || (from.page === "groups" && to.page === "groups")) history.replaceState(null, "", link(to));
  else history.pushState(null, "", link(to));
  hash.value = location.hash; // at once: the next key may come before the browser's event does
}
