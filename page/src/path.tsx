// A path: the conversation as the model saw it, context by context, and the numbers of the tokens of a turn.
import { useState } from "preact/hooks";
import type { Forest } from "./forest";
import { path, through } from "./forest";
import { link } from "./place";
import { Block, Figure, figure, Words } from "./text";
import { shade } from "./paint";
import type { GroupView, Turn, TurnWords } from "./views";

const MOST_SHOWN = 600;
const AROUND = 100; // turns of the path on each side of the chosen one
const BESIDE = 12;

interface Props { group: GroupView; trees: Forest; turn: number; words: ReadonlyMap<number, TurnWords>; onTurn: (turn: number) => void }

/** The turns of a path that are shown: those near the chosen one. */
function shown(ids: number[], turn: number): number[] {
  const place = ids.indexOf(turn);
  return ids.slice(Math.max(0, place - AROUND), place + AROUND + 1);
}

function siblings(group: GroupView, trees: Forest, turn: number): number[] {
  return trees.children.get(group.turns[turn]?.parent ?? -1) ?? [];
}

/** The turns whose words are shown where a turn is chosen. */
export function spoken(group: GroupView, trees: Forest, turn: number): number[] {
  return [...new Set([...shown(path(group, trees, turn), turn), ...siblings(group, trees, turn).slice(0, BESIDE)])];
}

export function Path({ group, trees, turn, words, onTurn }: Props) {
  const ids = path(group, trees, turn);
  const near = shown(ids, turn);
  const episodes = through(group, ids[ids.length - 1] ?? turn);
  const heard = words.get(turn)?.heard ?? [];
  return (
    <section class="path" aria-label="path" tabIndex={-1} data-focus="path">
      <h2>What was said</h2>
      <p>
        {episodes.map((episode) => (
          <span key={episode.id}>attempt {episode.id}: {episode.status}, return <Figure value={episode.ret} />
            {episode.success !== null && (episode.success ? ", solved" : ", not solved")}
            {episode.greedy && ", greedy"}{!episode.trained && ", not trained"}
            {episode.error && <>, <Words text={episode.error.slice(0, 300)} /></>}. </span>
        ))}
      </p>
      {heard.length > 0 && (
        <p>Words of turn {turn} stand in the prompts of {heard.map((each) => <TurnLink key={each} group={group} turn={each} />)}</p>
      )}
      <Siblings group={group} trees={trees} turn={turn} words={words} />
      {near.length < ids.length && <p class="quiet">{near.length} of the {ids.length} turns of the path, those near turn {turn}.</p>}
      {near.map((id) => {
        const each = group.turns[id];
        if (!each) return null;
        const said = words.get(id);
        return (
          <article key={id} class={id === turn ? "turn chosen" : "turn"} aria-current={id === turn ? "true" : undefined}>
            {each.context < 0 && <h3>a context of <Words text={each.agent} /> begins</h3>}
            {each.context >= 0 && each.context !== each.parent && <h3>it goes on after <TurnLink group={group} turn={each.context} /></h3>}
            {said?.messages.map((message, number) => (
              <div key={number} class={message.sources.includes(turn) ? "message heard" : "message"}>
                <span class="who"><Words text={message.role} />{message.sources.length > 0 && <> with words of {message.sources.map((source) => <TurnLink key={source} group={group} turn={source} />)}</>}</span>
                <Block text={message.content} characters={message.characters} label={`message of ${message.role}`} />
              </div>
            ))}
            <div class="action">
              <button type="button" class="who" onClick={() => onTurn(id)}>
                turn {id}, <Words text={each.role} />, credit <Figure value={each.credit} signed />
                {each.reward !== 0 && <>, reward <Figure value={each.reward} signed /></>}
                {!each.valid && <b class="bad">, not understood</b>}{!each.trained && <b>, not trained</b>}
              </button>
              {said ? <Block text={said.text} characters={said.characters} label={`words of turn ${id}`} /> : <p class="quiet">loading…</p>}
            </div>
            {id === turn && said && <Tokens turn={each} words={said} />}
            {id === turn && said && <Facts turn={said} />}
          </article>
        );
      })}
    </section>
  );
}

export function TurnLink({ group, turn }: { group: GroupView; turn: number }) {
  return <a class="turn-link" href={link({ page: "group", step: group.step, uid: group.uid, turn, part: "path" })}>turn {turn}</a>;
}

function Facts({ turn }: { turn: TurnWords }) {
  const facts = Object.entries({ ...turn.extra, ...turn.decision, anchor: turn.anchor, stopped: turn.stop_reason, policy: turn.policy,
    "weights of step": turn.policy_version.join("–"), "prompt from cache": turn.prompt_tokens ? `${turn.cached_tokens} of ${turn.prompt_tokens}` : null })
    .filter(([, value]) => value !== null && value !== "");
  return (
    <dl class="facts">
      {facts.map(([name, value]) => <div key={name}><dt><Words text={name} /></dt><dd><Words text={typeof value === "string" ? value.slice(0, 500) : JSON.stringify(value).slice(0, 500)} /></dd></div>)}
    </dl>
  );
}

const MEASURES = {
  "log-prob": (words: TurnWords) => words.logprobs,
  entropy: (words: TurnWords) => words.entropy,
  credit: (words: TurnWords, turn: Turn) => words.tokens.map(() => turn.credit ?? 0),
};

function Tokens({ turn, words }: { turn: Turn; words: TurnWords }) {
  const names = Object.entries(MEASURES).filter(([, of]) => of(words, turn).length > 0).map(([name]) => name as keyof typeof MEASURES);
  const [measure, setMeasure] = useState<keyof typeof MEASURES>(names[0] ?? "credit");
  const [at, setAt] = useState<number | null>(null);
  const values = MEASURES[measure](words, turn);
  const most = values.reduce((size, value) => Math.max(size, Math.abs(value)), 1e-12);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const masks = Object.entries(words.masks);
  const inside = (place: number) => masks.filter(([, spans]) => spans.some(([start, stop]) => place >= start && place < stop)).map(([name]) => name);
  return (
    <div class="tokens">
      <div class="bar" role="group" aria-label="measure of the tokens">
        {turn.n_action} tokens by {names.map((name) => <button type="button" key={name} aria-pressed={name === measure} onClick={() => setMeasure(name)}>{name}</button>)}
        {masks.length > 0 && <span class="quiet">underlined: {masks.map(([name]) => name).join(", ")}</span>}
      </div>
      <div class="strip">
        {words.tokens.slice(0, MOST_SHOWN).map((token, place) => {
          const here = inside(place);
          const said = [`token ${place}`, `id ${token}`, ...names.map((name) => `${name} ${figure(MEASURES[name](words, turn)[place] ?? 0)}`), ...here].join(", ");
          return <button type="button" key={place} class={here.length ? "token masked" : "token"} tabIndex={place ? -1 : 0} aria-label={said} title={said}
            onFocus={() => setAt(place)} onClick={() => setAt(place)} style={{ background: shade((values[place] ?? 0) / most, dark) }} />;
        })}
      </div>
      {turn.n_action > MOST_SHOWN && <p class="quiet">The first {MOST_SHOWN} of {turn.n_action} tokens.</p>}
      {at !== null && (words.top[at]?.length ?? 0) > 0 && (
        <p>likeliest instead of token {at}: {words.top[at]?.map(([token, value]) => <span key={token}> id {token} ({figure(Math.exp(value))})</span>)}</p>
      )}
    </div>
  );
}

function Siblings({ group, trees, turn, words }: Omit<Props, "onTurn">) {
  const beside = siblings(group, trees, turn);
  const own = group.turns[turn];
  if (beside.length < 2 || !own) return null;
  const text = (id: number) => (words.get(id)?.text ?? "").slice(0, 1500);
  return (
    <details class="siblings" open={beside.length <= 4}>
      <summary>{beside.length} turns begin here{own.parent >= 0 ? ` after turn ${own.parent}` : ""}</summary>
      <div class="columns">
        {beside.slice(0, BESIDE).map((id) => {
          const each = group.turns[id];
          if (!each) return null;
          const [same, other, end] = difference(text(turn), text(id));
          return (
            <div key={id} class={id === turn ? "chosen" : ""}>
              <TurnLink group={group} turn={id} /> best return <Figure value={trees.ret.get(id)} />, credit <Figure value={each.credit} signed />
              <pre><Words text={same} />{other && <mark><Words text={other} /></mark>}<Words text={end} /></pre>
            </div>
          );
        })}
      </div>
      {beside.length > BESIDE && <p class="quiet">and {beside.length - BESIDE} more</p>}
    </details>
  );
}

/** What another text has in common with a text at its beginning and its end, in whole words, and what is between. */
function difference(text: string, other: string): [string, string, string] {
  const [left, right] = [text.split(/(\s+)/), other.split(/(\s+)/)];
  let begin = 0;
  while (begin < Math.min(left.length, right.length) && left[begin] === right[begin]) begin += 1;
  let end = 0;
  while (end < Math.min(left.length, right.length) - begin && left[left.length - 1 - end] === right[right.length - 1 - end]) end += 1;
  return [right.slice(0, begin).join(""), right.slice(begin, right.length - end).join(""), right.slice(right.length - end).join("")];
}

