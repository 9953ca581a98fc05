// Why this number: the terms that the estimator added up, and what each was compared with.
import { through } from "./forest";
import { link } from "./place";
import { Figure, Words } from "./text";
import { TurnLink } from "./path";
import type { Comparison, GroupView, Lost, Reasons, Term, Why as Method } from "./views";

const MOST_MEMBERS = 60;

export function Why({ group, reasons, turn }: { group: GroupView; reasons: Reasons | null; turn: number }) {
  const own = group.turns[turn];
  const methods = reasons?.methods;
  if (!own) return null;
  return (
    <section class="why" aria-label="why" tabIndex={-1} data-focus="why">
      <h2>Why turn {turn} got <Figure value={own.credit} signed /></h2>
      {!methods && <p class="quiet">loading…</p>}
      {methods?.length === 0 && (
        <p>These rollouts do not say which estimator credited them; <code>--estimator NAME</code> shows what one would give.</p>
      )}
      {methods?.map((method) => <Explained key={method.name} group={group} method={method} turn={turn} />)}
      {reasons && <Losses group={group} lost={reasons.lost} turn={turn} />}
      <Members group={group} />
    </section>
  );
}

/** What the turn lost of each lost attempt that it belongs to, and which turn lost most of it. */
function Losses({ group, lost, turn }: { group: GroupView; lost: Lost[]; turn: number }) {
  const mine = lost.filter((each) => each.turns.includes(turn));
  if (!mine.length) return null;
  return (
    <div class="lost" data-what="lost">
      <h3>Who lost the lost attempts</h3>
      {mine.map((each) => (
        <p key={each.episode}>attempt {each.episode}: {each.turn < 0 ? "nothing tells, because no other attempt was better at a place of it" : <>
          {each.turn === turn ? <b class="bad">this turn</b> : <TurnLink group={group} turn={each.turn} />} of <Words text={group.turns[each.turn]?.agent ?? ""} /> lost <Figure value={each.drop} /> of
          what the others made of the same places{each.turn !== turn && <>; this one <Figure value={each.drops[each.turns.indexOf(turn)]} signed /></>}</>}.</p>
      ))}
    </div>
  );
}

function Explained({ group, method, turn }: { group: GroupView; method: Method; turn: number }) {
  const place = method.turns?.indexOf(turn) ?? -1;
  const stored = group.turns[turn]?.credit ?? null;
  const credit = place < 0 ? null : method.credit?.[place] ?? null;
  const flips = method.flips ?? [];
  return (
    <div class="method" data-method={method.name}>
      <h3>{method.name}{method.ran && ", which the run trained with"}</h3>
      <p class="quiet">{method.summary}. {Object.entries(method.options).map(([name, value]) => `${name}: ${String(value)}`).join(", ")}
        {method.doc && <> <span>Formula: docs/{method.doc}</span></>}</p>
      {method.says !== undefined && <p><Words text={method.says} /></p>}
      {method.says === undefined && place < 0 && <p>The turn belongs to no complete episode, so it has no credit.</p>}
      {place >= 0 && !method.trained?.[place] && <p>The turn is not trained: its credit is 0.</p>}
      {place >= 0 && method.terms?.length === 0 && (
        <p>This estimator does not explain itself: only its result is known, <Figure value={credit} signed />.</p>
      )}
      {place >= 0 && method.trained?.[place] && method.terms?.map((term, number) => <Summand key={number} group={group} term={term} turn={turn} per={method.per} />)}
      {place >= 0 && (
        <p class="sum">
          credit <b data-what="credit"><Figure value={credit} signed /></b>
; weight in the loss <span data-what="weight"><Figure value={method.weight?.[place]} /></span>
          {method.ran && method.differs?.includes(turn) && <b class="bad">; the store has <Figure value={stored} signed />, because the run credited it with something that is not stored</b>}
          {!method.ran && stored !== null && <>; the run gave <Figure value={stored} signed />{flips.includes(turn) && <b class="bad">, the other sign</b>}</>}
        </p>
      )}
      {!method.ran && flips.length > 0 && (
        <p>{flips.length} turns of this group change their sign: {flips.slice(0, 40).map((id) => <a key={id} class="turn-link" href={link({ page: "group", step: group.step, uid: group.uid, turn: id, part: "why" })}>turn {id}</a>)}</p>
      )}
    </div>
  );
}

function Summand({ group, term, turn, per }: { group: GroupView; term: Term; turn: number; per: string | undefined }) {
  const units = term.unit === "turn" ? [turn] : through(group, turn).map((episode) => episode.id);
  const places = units.map((id) => term.ids.indexOf(id)).filter((place) => place >= 0);
  if (term.unit === "turn" && places.every((place) => term.values[place] === 0) && term.comparisons.every((each) => !each.ids.includes(turn))) {
    return null;
  }
  return (
    <details class="term" open>
      <summary>
        {term.weight !== 1 && <><Figure value={term.weight} /> × </>}
        {places.map((place) => (
          <span key={place} data-what="term">{term.unit === "episode" && `attempt ${term.ids[place]}: `}<Figure value={term.values[place]} signed /> </span>
        ))}
        {term.name}{term.unit === "episode" && places.length > 1 && (per === "step" ? " (each attempt through the turn trains it with its own number; the credit below is their mean)" : " (the turn gets the mean of the attempts through it)")}
      </summary>
      {Object.entries(term.figures).map(([name, values]) => (
        <p key={name}>{name}: {places.map((place) => <Figure key={place} value={values[place]} />)}</p>
      ))}
      {term.comparisons.map((each, number) => <Compared key={number} group={group} comparison={each} units={term.unit === each.unit ? units : each.unit === "turn" ? [turn] : through(group, turn).map((episode) => episode.id)} />)}
    </details>
  );
}

function Compared({ group, comparison, units }: { group: GroupView; comparison: Comparison; units: number[] }) {
  const here = units.map((id) => comparison.ids.indexOf(id)).filter((place) => place >= 0);
  const keys = [...new Set(here.map((place) => comparison.keys[place]))];
  return (
    <>
      {keys.map((key) => {
        const members = comparison.keys.flatMap((each, place) => (each === key ? [place] : []));
        const one = members[0] ?? 0;
        return (
          <div key={key} class="compared">
            {here.filter((place) => comparison.keys[place] === key).map((place) => <Formula key={place} comparison={comparison} place={place} />)}
            <p class="quiet">
              {comparison.rule["centre"] === "none" ? "nothing is subtracted" : <>{comparison.rule["centre"] === "median" ? "median" : "mean"} of the group <Figure value={comparison.centre[one]} /></>},
              scale ({String(comparison.rule["scale"])}) <Figure value={comparison.spread[one]} />, eps {String(comparison.rule["eps"])},
              factor <Figure value={comparison.factor[one]} />{comparison.rule["centre"] === "leave_one_out" && " (which leaves the member itself out of the mean)"};
              one vote alone: {String(comparison.rule["singleton"])}
            </p>
            <table>
              <caption>{members.length} {comparison.unit === "turn" ? "turns" : "attempts"} were compared{comparison.elsewhere > 0 && `, with ${comparison.elsewhere} of other groups`}</caption>
              <thead><tr><th scope="col">{comparison.unit}</th><th scope="col">score</th><th scope="col">votes</th><th scope="col">result</th></tr></thead>
              <tbody>
                {members.slice(0, MOST_MEMBERS).map((place) => (
                  <tr key={place} class={here.includes(place) ? "chosen" : ""}>
                    <th scope="row">{comparison.unit === "turn" ? <TurnLink group={group} turn={comparison.ids[place] ?? 0} /> : `attempt ${comparison.ids[place]}`}</th>
                    <td><Figure value={comparison.scores[place]} /></td><td><Figure value={comparison.votes[place]} /></td>
                    <td><Figure value={comparison.result[place]} signed /></td>
                  </tr>
                ))}
              </tbody>
            </table>
            {members.length > MOST_MEMBERS && <p class="quiet">and {members.length - MOST_MEMBERS} more</p>}
          </div>
        );
      })}
    </>
  );
}

function Formula({ comparison, place }: { comparison: Comparison; place: number }) {
  const [score = 0, centre = 0, factor = 0, result = 0] = [comparison.scores, comparison.centre, comparison.factor, comparison.result].map((each) => each[place]);
  const follows = Math.abs((score - centre) * factor - result) <= 1e-9 * Math.max(1, Math.abs(result));
  return (
    <p class="formula">
      {comparison.unit === "episode" && `attempt ${comparison.ids[place]}: `}
      {follows
        ? <>(<Figure value={score} /> − <Figure value={centre} />) × <Figure value={factor} /> = <Figure value={result} signed /></>
        : <><Figure value={score} /> is passed on as <Figure value={result} signed />, by the rule of the group</>}
    </p>
  );
}

function Members({ group }: { group: GroupView }) {
  return (
    <details>
      <summary>the {group.episodes.length} attempts of the group</summary>
      <table>
        <thead><tr>{["attempt", "status", "return", "solved", "trained", "from"].map((name) => <th scope="col" key={name}>{name}</th>)}</tr></thead>
        <tbody>
          {group.episodes.slice(0, 500).map((episode) => (
            <tr key={episode.id}>
              <th scope="row">{episode.leaf >= 0 ? <a href={link({ page: "group", step: group.step, uid: group.uid, turn: episode.leaf, part: "path" })}>{episode.id}</a> : episode.id}</th>
              <td>{episode.status}</td><td><Figure value={episode.ret} /></td><td>{episode.success === null ? "–" : episode.success ? "yes" : "no"}</td>
              <td>{episode.trained ? "yes" : episode.withheld ? "withheld" : "no"}</td><td>{episode.source < 0 ? "the start" : `attempt ${episode.source}, after ${episode.shared} turns`}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </details>
  );
}
