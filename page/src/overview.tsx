// Alarms first, then what ran, and curves over the steps.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { link } from "./place";
import { Figure, Words } from "./text";
import type { Curve, Overview as View } from "./views";

export function Overview({ view }: { view: View }) {
  return (
    <main>
      {view.notes.map((note) => <p key={note} class="note"><Words text={note} /></p>)}
      {view.unread > 0 && <p class="quiet unread">{view.unread} earlier steps are being read…</p>}
      <h2>What deserves a look</h2>
      {view.alarms.length === 0 && <p>{view.groups.length ? "Nothing: every group teaches, and every turn was understood." : "No rollouts are stored yet."}</p>}
      <ul class="alarms">
        {view.alarms.map((alarm) => (
          <li key={`${alarm.name} ${alarm.says}`}>
            <b>{alarm.many.toLocaleString("en")}</b> <Words text={alarm.says} />{alarm.groups > 1 && alarm.many !== alarm.groups && ` (in ${alarm.groups} groups)`}:
            {alarm.places.slice(0, 6).map((place) => {
              const group = view.groups[place];
              return group && (
                <a key={place} data-alarm={alarm.name} href={link({ page: "group", step: group.step, uid: group.uid, turn: null, part: "tree" })}>
                  step {group.step}, <Words text={group.title.slice(0, 50)} />
                </a>
              );
            })}
            {alarm.steps.slice(0, 12).map((step) => <a key={step} data-alarm={alarm.name} href={link({ page: "groups", words: `step:${step}` })}>step {step}</a>)}
            {alarm.groups > 6 && <a href={link({ page: "groups", words: `is:${alarm.name}` })}>and {alarm.groups - 6} more</a>}
          </li>
        ))}
      </ul>
      <h2>Over the steps</h2>
      <div class="curves">{names(view.steps).map((name) => <Chart key={name} name={name} steps={view.steps} />)}</div>
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
        axes: [{ ...grid, size: 24 }, { ...grid, size: 44 }], series: [{}, { stroke: "rgb(60,130,220)", width: 2, points: { show: steps.length < 40 } }] },
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
