// A path: the conversation as the model saw it, context by context, and the numbers of the tokens of a turn.
import { useState } from "preact/hooks";
import type { Forest } from "./forest";
import { path, through } from "./forest";
import { link } from "./place";
import { Block, Figure, figure, Words } from "./text";
import { shade } from "./tree";
import type { GroupView, Turn } from "./views";

const MOST_SHOWN = 600;

interface Props { group: GroupView; trees: Forest; turn: number; onTurn: (turn: number) => void }

export function Path({ group, trees, turn, onTurn }: Props) {
  const ids = path(group, trees, turn);
  const episodes = through(group, ids[ids.length - 1] ?? turn);
  const heard = group.turns.filter((each) => each.messages.some((message) => message.sources.includes(turn)));
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
        <p>Words of turn {turn} stand in the prompts of {heard.map((each) => <TurnLink key={each.id} group={group} turn={each.id} />)}</p>
      )}
      <Siblings group={group} trees={trees} turn={turn} />
      {ids.map((id) => {
        const each = group.turns[id];
        if (!each) return null;
        return (
          <article key={id} class={id === turn ? "turn chosen" : "turn"} aria-current={id === turn ? "true" : undefined}>
            {each.context < 0 && <h3>a context of <Words text={each.agent} /> begins</h3>}
            {each.context >= 0 && each.context !== each.parent && <h3>it goes on after <TurnLink group={group} turn={each.context} /></h3>}
            {each.messages.map((message, number) => (
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
              <Block text={each.text} characters={each.characters} label={`words of turn ${id}`} />
            </div>
            {id === turn && <Tokens turn={each} />}
            {id === turn && <Facts turn={each} />}
          </article>
        );
      })}
    </section>
  );
}

export function TurnLink({ group, turn }: { group: GroupView; turn: number }) {
  return <a class="turn-link" href={link({ page: "group", step: group.step, uid: group.uid, turn, part: "path" })}>turn {turn}</a>;
}

function Facts({ turn }: { turn: Turn }) {
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
  "log-prob": (turn: Turn) => turn.logprobs,
  entropy: (turn: Turn) => turn.entropy,
  credit: (turn: Turn) => turn.tokens.map(() => turn.credit ?? 0),
};

function Tokens({ turn }: { turn: Turn }) {
  const names = Object.entries(MEASURES).filter(([, of]) => of(turn).length > 0).map(([name]) => name as keyof typeof MEASURES);
  const [measure, setMeasure] = useState<keyof typeof MEASURES>(names[0] ?? "credit");
  const [at, setAt] = useState<number | null>(null);
  const values = MEASURES[measure](turn);
  const most = values.reduce((size, value) => Math.max(size, Math.abs(value)), 1e-12);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const masks = Object.entries(turn.masks);
  const inside = (place: number) => masks.filter(([, spans]) => spans.some(([start, stop]) => place >= start && place < stop)).map(([name]) => name);
  return (
    <div class="tokens">
      <div class="bar" role="group" aria-label="measure of the tokens">
        {turn.n_action} tokens by {names.map((name) => <button type="button" key={name} aria-pressed={name === measure} onClick={() => setMeasure(name)}>{name}</button>)}
        {masks.length > 0 && <span class="quiet">underlined: {masks.map(([name]) => name).join(", ")}</span>}
      </div>
      <div class="strip">
        {turn.tokens.slice(0, MOST_SHOWN).map((token, place) => {
          const here = inside(place);
          const said = [`token ${place}`, `id ${token}`, ...names.map((name) => `${name} ${figure(MEASURES[name](turn)[place] ?? 0)}`), ...here].join(", ");
          return <button type="button" key={place} class={here.length ? "token masked" : "token"} tabIndex={place ? -1 : 0} aria-label={said} title={said}
            onFocus={() => setAt(place)} onClick={() => setAt(place)} style={{ background: shade((values[place] ?? 0) / most, dark) }} />;
        })}
      </div>
      {turn.n_action > MOST_SHOWN && <p class="quiet">The first {MOST_SHOWN} of {turn.n_action} tokens.</p>}
      {at !== null && (turn.top[at]?.length ?? 0) > 0 && (
        <p>likeliest instead of token {at}: {turn.top[at]?.map(([token, value]) => <span key={token}> id {token} ({figure(Math.exp(value))})</span>)}</p>
      )}
    </div>
  );
}

function Siblings({ group, trees, turn }: { group: GroupView; trees: Forest; turn: number }) {
  const beside = trees.children.get(group.turns[turn]?.parent ?? -1) ?? [];
  const own = group.turns[turn];
  if (beside.length < 2 || !own) return null;
  return (
    <details class="siblings" open={beside.length <= 4}>
      <summary>{beside.length} turns begin here{own.parent >= 0 ? ` after turn ${own.parent}` : ""}</summary>
      <div class="columns">
        {beside.slice(0, 12).map((id) => {
          const each = group.turns[id];
          if (!each) return null;
          const [same, other, end] = difference(own.text.slice(0, 1500), each.text.slice(0, 1500));
          return (
            <div key={id} class={id === turn ? "chosen" : ""}>
              <TurnLink group={group} turn={id} /> best return <Figure value={trees.ret.get(id)} />, credit <Figure value={each.credit} signed />
              <pre><Words text={same} />{other && <mark><Words text={other} /></mark>}<Words text={end} /></pre>
            </div>
          );
        })}
      </div>
      {beside.length > 12 && <p class="quiet">and {beside.length - 12} more</p>}
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

