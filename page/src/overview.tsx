// The run at a glance: three answers, the trees that are worth a look, curves over the steps, then alarms and hints.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { link } from "./place";
import { Figure, Words } from "./text";
import { Thumbnail, useDark } from "./thumbnail";
import type { Curve, Overview as View } from "./views";

export function Overview({ view }: { view: View }) {
  const dark = useDark();
  return (
    <main>
      {view.notes.map((note) => <p key={note} class="note"><Words text={note} /></p>)}
      {view.unread > 0 && <p class="quiet unread">{view.unread} earlier steps are being read…</p>}
      {view.groups.length === 0 && <p>No rollouts are stored yet.</p>}
      <dl class="answers">
        {view.answers.map(({ asks, says }, place) => (
          <div key={asks}><dt>{asks}</dt><dd class={place === 2 && view.alarms.some((alarm) => alarm.kind === "alarm") ? "alarmed" : undefined}><Words text={says} /></dd></div>
        ))}
      </dl>
      {view.trees.length > 0 && <h2>Trees that are worth a look</h2>}
      <ul class="trees">{view.trees.map((tree) => <Thumbnail key={`${tree.step} ${tree.uid}`} tree={tree} dark={dark} />)}</ul>
      {view.run.against && <Changed name={view.run.name} against={view.run.against} />}
      <h2>Over the steps</h2>
      <div class="curves">{names(view.steps).map((name) => <Chart key={name} name={name} steps={view.steps} />)}</div>
      <Found view={view} kind="alarm" title="Alarms" />
      <Found view={view} kind="hint" title="Hints" />
      <details>
        <summary>what ran</summary>
        <dl class="facts">
          {[...Object.entries(view.run.parts), ...Object.entries(view.run.seeds), ...Object.entries(view.run.versions), ["overrides", view.run.overrides.join(" ")], ["revision", view.run.revision], ["guards", JSON.stringify(view.run.guards)]].map(
            ([name, value]) => <div key={String(name)}><dt>{String(name)}</dt><dd><Words text={String(value ?? "–")} /></dd></div>,
          )}
        </dl>
      </details>
    </main>
  );
}

/** The lines in which the recipe of another run differs. */
function Changed({ name, against }: { name: string; against: NonNullable<View["run"]["against"]> }) {
  return (
    <>
      <h2>Against another run</h2>
      <div class="wide"><table class="changed">
        <thead><tr><th scope="col" /><th scope="col"><Words text={name} /></th><th scope="col"><Words text={against.name} /></th></tr></thead>
        <tbody>{against.lines.map(([key, ...values]) => <tr key={key}><th scope="row"><Words text={key ?? ""} /></th>{values.map((value, place) => <td key={place}><Words text={value} /></td>)}</tr>)}</tbody>
      </table></div>
    </>
  );
}

/** Alarms, or hints, a line each with links to where they are worst. */
function Found({ view, kind, title }: { view: View; kind: "alarm" | "hint"; title: string }) {
  const found = view.alarms.filter((alarm) => alarm.kind === kind);
  if (!found.length) return null;
  return (
    <>
      <h2>{title}</h2>
      <ul class="alarms">
        {found.map((alarm) => (
          <li key={`${alarm.name} ${alarm.says}`}>
            <b>{alarm.many.toLocaleString("en")}</b> <Words text={alarm.says} />{alarm.groups > 1 && alarm.many !== alarm.groups && ` (in ${alarm.groups} groups)`}:
            {alarm.places.slice(0, 3).map((place) => {
              const group = view.groups[place];
              return group && (
                <a key={place} data-alarm={alarm.name} title={group.title} href={link({ page: "group", step: group.step, uid: group.uid, turn: null, part: "tree" })}>
                  step {group.step}, <Words text={shortened(group.title)} />
                </a>
              );
            })}
            {alarm.steps.slice(0, 12).map((step) => <a key={step} data-alarm={alarm.name} href={link({ page: "groups", words: `step:${step}` })}>step {step}</a>)}
            {alarm.groups > 3 && <a href={link({ page: "groups", words: `is:${alarm.name}` })}>and {alarm.groups - 3} more</a>}
          </li>
        ))}
      </ul>
    </>
  );
}

/** The first words of a title, none of them cut. */
function shortened(title: string): string {
  if (title.length <= 50) return title;
  const end = title.lastIndexOf(" ", 50);
  return `${title.slice(0, end > 0 ? end : 50)} …`;
}

/** A tick in a few signs, none of which is cut. */
function tick(value: number): string {
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 10000) ? value.toExponential(0) : String(Number(value.toPrecision(3)));
}

function names(steps: Curve[]): string[] {
  return [...new Set(steps.flatMap((step) => Object.keys(step)))].filter((name) => name !== "step" && steps.some((step) => typeof step[name] === "number"));
}

function Chart({ name, steps }: { name: string; steps: Curve[] }) {
  const box = useRef<HTMLDivElement>(null);
  const last = steps[steps.length - 1]?.[name];
  useEffect(() => {
    if (!box.current || steps.length < 2) return;
    const ink = getComputedStyle(box.current).color;
    const grid = { stroke: ink, grid: { stroke: "rgba(128,128,128,0.2)" }, font: "11px system-ui" };
    const chart = new uPlot(
      { width: 300, height: 120, legend: { show: false }, cursor: { show: false }, scales: { x: { time: false } },
        axes: [{ ...grid, size: 24, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000] }, { ...grid, size: 52, values: (_, ticks) => ticks.map(tick) }], series: [{}, { stroke: "rgb(60,130,220)", width: 2, points: { show: steps.length < 40 } }] },
      [steps.map((step) => step.step), steps.map((step) => step[name] ?? null)], box.current,
    );
    return () => chart.destroy();
  }, [name, steps]);
  return (
    <figure role="group" aria-label={`${name}, last ${String(last)}`}>
      <figcaption><Words text={name} /> <Figure value={last ?? null} /></figcaption>
      {steps.length > 1 && <div class="chart" ref={box} aria-hidden="true" />}
    </figure>
  );
}
