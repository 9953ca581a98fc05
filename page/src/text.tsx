// Words of a model or an environment: text always, in a box of their own direction, with signs that nobody sees shown.
import { useState } from "preact/hooks";

const SHORT = 4000;
// Control characters but tab and line feed, marks of direction and other invisible signs.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/;

function pieces(text: string): (string | { code: string })[] {
  const found: (string | { code: string })[] = [];
  let rest = text;
  for (let hit = HIDDEN.exec(rest); hit; hit = HIDDEN.exec(rest)) {
    if (hit.index) found.push(rest.slice(0, hit.index));
    found.push({ code: hit[0].charCodeAt(0).toString(16).toUpperCase().padStart(4, "0") });
    rest = rest.slice(hit.index + 1);
  }
  if (rest) found.push(rest);
  return found;
}

/** A line of foreign words. */
export function Words({ text }: { text: string }) {
  return (
    <bdi class="words">
      {pieces(text).map((piece) =>
        typeof piece === "string" ? piece : <span class="hidden-sign" title={`the sign U+${piece.code}`}>{`␣${piece.code}`}</span>,
      )}
    </bdi>
  );
}

/** Foreign words as a block; a long one is cut until it is asked for. */
export function Block({ text, characters, label }: { text: string; characters?: number; label: string }) {
  const [whole, setWhole] = useState(false);
  const shown = whole ? text : text.slice(0, SHORT);
  const all = characters ?? text.length;
  return (
    <div class="block" aria-label={label}>
      <pre><Words text={shown} /></pre>
      {!whole && text.length > SHORT && (
        <button type="button" onClick={() => setWhole(true)}>show {Math.min(text.length, all).toLocaleString("en")} characters</button>
      )}
      {(whole || text.length <= SHORT) && all > text.length && (
        <p class="quiet">{all.toLocaleString("en")} characters; the page has the first {text.length.toLocaleString("en")} of them.</p>
      )}
    </div>
  );
}

/** A number of a few digits; its `value` has all of them. */
export function Figure({ value, signed = false }: { value: number | null | undefined; signed?: boolean }) {
  if (value === null || value === undefined) return <span class="quiet">–</span>;
  return <data value={String(value)} title={String(value)}>{figure(value, signed)}</data>;
}

export function figure(value: number, signed = false): string {
  const size = Math.abs(value);
  const text = Number.isInteger(value) ? String(size) : size >= 1000 || size < 0.0005 ? size.toExponential(2) : size.toFixed(3);
  return `${value < 0 ? "−" : signed && value > 0 ? "+" : ""}${text}`;
}
