// What the Python room `verl_hier.viewer` answers, by the names that it uses.

export interface Group {
  step: number; uid: string; title: string; source: string; index: number | null;
  episodes: number; trained: number; succeeded: number; failed: number; pruned: number; truncated: number;
  forks: number; turns: number; tokens: number; invalid: number; without_credit: number; cut: number; stale: number; logprobs: number;
  mean: number | null; best: number | null; spread: number; singleton: number; flat: number;
}

export interface Alarm { name: string; kind: "alarm" | "hint"; says: string; many: number; groups: number; places: number[]; steps: number[] }

export interface Answer { asks: string; says: string }

/** A tree that is drawn small: lists over its turns, and for each leaf its turn, its return, and whether it was won. */
export interface Small {
  why: string; step: number; uid: string; title: string; turns: number; episodes: number; succeeded: number;
  parent?: number[]; level?: number[]; credit?: (number | null)[]; leaves?: [number, number, boolean | null][];
}

export type Curve = { step: number } & Record<string, number | null>;

export interface Overview {
  run: {
    name: string; parts: Record<string, string>; versions: Record<string, string | null>;
    seeds: Record<string, unknown>; overrides: string[]; revision: string | null; guards: Record<string, unknown>;
    against: { name: string; lines: string[][] } | null;
  };
  notes: string[]; unread: number; stamp: string; methods: string[]; groups: Group[]; steps: Curve[]; alarms: Alarm[]; answers: Answer[]; trees: Small[];
}

export interface Episode {
  id: number; source: number; shared: number; leaf: number; status: string; ret: number; success: boolean | null;
  trained: boolean; greedy: boolean; withheld: boolean; error: string | null;
}

export interface Turn {
  id: number; parent: number; context: number; plan: number; agent: string; role: string; level: number;
  n_action: number; mean_entropy: number | null; reward: number; trained: boolean; valid: boolean; credit: number | null;
  logprob_difference: number | null;
}

/** A list for each field but the number of a row, which is its place. */
export type Columns<Row> = { [Name in keyof Omit<Row, "id">]: Row[Name][] };

export interface Message { role: string; content: string; characters: number; sources: number[] }

export interface TurnWords {
  id: number; heard: number[]; text: string; characters: number; messages: Message[]; anchor: string | null;
  stop_reason: string | null; prompt_tokens: number; cached_tokens: number; decision: Record<string, unknown>;
  extra: Record<string, unknown>; policy: string; policy_version: [number, number]; masks: Record<string, [number, number][]>;
  tokens: number[]; logprobs: number[]; entropy: number[]; top: [number, number][][]; picture?: string;
}

export interface Comparison {
  unit: "turn" | "episode"; rule: Record<string, string | number>; ids: number[]; elsewhere: number;
  keys: number[]; scores: number[]; votes: number[]; centre: number[]; spread: number[]; factor: number[];
  result: number[];
}

export interface Term {
  name: string; unit: "turn" | "episode"; weight: number; ids: number[]; values: number[];
  figures: Record<string, number[]>; comparisons: Comparison[];
}

export interface Why {
  name: string; summary: string; doc: string; options: Record<string, unknown>; ran: boolean; says?: string;
  per?: string; turns?: number[]; credit?: number[]; weight?: number[]; trained?: boolean[]; terms?: Term[];
  differs?: number[]; flips?: number[];
}

/** Who lost a lost attempt, by what the others made of the same places; `turn` is -1 where nothing tells. */
export interface Lost { episode: number; turn: number; drop: number; turns: number[]; drops: number[] }

export interface Reasons { methods: Why[]; lost: Lost[] }

export interface GroupView { step: number; uid: string; title: string; episodes: Episode[]; turns: Turn[] }

export interface Hits { words: string; many: number; hits: { step: number; uid: string; node: number }[] }
