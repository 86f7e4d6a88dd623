// The JSON that the server sends, as far as the page reads it. Types only: browsers never load this file.
// The server may add fields; the page ignores what it does not know.

export type RunStatus =
  | "pending" | "running" | "waiting" | "paused" | "interrupted" | "completed" | "failed" | "cancelled";

/** Something a person can do about a run: as a verb of the API, in words, and as a command to paste. */
export interface Remedy {
  verb: string;
  arguments: Record<string, unknown>;
  words: string;
  command: string;
}

/** A row of `GET runs`, and of the event `row` of `GET live`. */
export interface Row {
  id: string;
  flow: string;
  status: RunStatus;
  error: string | null;
  seq: number;
  labels: Record<string, string>;
  parent: string | null;
  /** The run that started it. */
  origin: string | null;
  created_at: number;
  updated_at: number;
  due_at: number | null;
  held_by: string | null;
  queue: string;
  /** Nodes that have started and not ended (the first few). */
  active: string[];
  /** The run should move, but no live process executes it. */
  crashed: boolean;
  /** The run was paused, and nodes of it still run. */
  pausing?: boolean;
  /** Open questions. */
  asks: number;
  active_s: number;
  reason: string;
  remedy: Remedy | null;
  /** The run asks a question, failed, or should continue and does not. */
  needs_attention: boolean;
  /** When a node that failed is retried next. */
  retry_at: number | null;
}

export interface RunPage {
  runs: Row[];
  next: string | null;
}

/** A minute of the board: how many runs ended in it, by how they ended. */
export interface Minute {
  at: number;
  completed?: number;
  failed?: number;
  cancelled?: number;
}

/** The store at a glance: `GET board`, and the event `board` of `GET live`. */
export interface Board {
  at: number;
  counts: Partial<Record<RunStatus, number>>;
  /** Runs with a problem, and runs with an open question. */
  attention: number;
  /** Open questions. */
  asks: number;
  /** What the last examination of the store found; null before the first one. */
  problems: number | null;
  minutes: Minute[];
}

/** A live engine: `GET workers`. */
export interface Worker {
  id: string;
  name: string;
  host: string;
  pid: number;
  /** It claims runs of other processes. */
  is_worker: boolean;
  flows: string[];
  /** Empty: all queues. */
  queues: string[];
  version: string;
  held: number;
  /** It is not alive any more, and has not ended in order. */
  gone: boolean;
  since: number | null;
  seen_at: number;
  expires_at: number;
}

/** What the doctor says about a run or about the store. */
export interface Finding {
  kind: string;
  reason: string;
  remedies?: Remedy[];
  run_id?: string | null;
  flow?: string | null;
  node?: string | null;
  since?: number | null;
}

/** Something about the store that the doctor looks at: `GET doctor`. */
export interface StoreCheck {
  title: string;
  detail: string;
  fault?: string | null;
}

/** `GET queues`. */
export interface Queue {
  name: string;
  limit: number | null;
  held: number;
  offered: number;
}

export type Role = "read" | "start" | "operate" | "admin";

/** `GET meta`: who calls, and what this server is. */
export interface Meta {
  name: string;
  by: string;
  role: Role;
  kind: "person" | "agent";
  expires_at: number | null;
  version: string;
  store: string;
  flows: string[];
  features: string[];
  /** Starts a run in this store. */
  run_command: string;
  public_urls: string[];
  now: number;
}

/** RFC 9457, as the server sends it, or as the page words a failure of the network (status 0). */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  remedy: string;
  errors?: { path: string; message: string }[];
  /** With 412: what the verb would do now. */
  preview?: Preview;
}

/** A value, or the size and digest of a large one. */
export interface Value {
  value?: unknown;
  bytes?: number;
  sha256?: string;
}

/** One change of a state: `GET runs/{id}/diff`. For "append" and "add", `now` is what was appended or added. */
export interface Change {
  operation: "set" | "append" | "merge" | "add" | "reduce" | "unset";
  path: string[];
  now?: Value | null;
  was?: Value | null;
  /** Of the page: what is said in place of the operation. */
  note?: string;
}

/** A line of a traceback; `own`: of the reader's code, not of Python or a package. */
export interface Frame {
  file: string;
  line: number;
  function: string;
  source: string;
  own: boolean;
}

export interface FailureView {
  kind: string;
  type: string;
  message: string;
  frames: Frame[];
  traceback: string;
  advice: string;
  /** The item for which a fan-out failed. */
  item?: number | null;
  label?: string;
}

export interface Cost {
  usd: number;
  tokens: number;
}

/** A child run, as its caller shows it. */
export interface Child {
  id: string;
  flow: string;
  status: RunStatus;
  key: string | null;
  node: string | null;
  pausing?: boolean;
}

/** A run in a family; `depth`: how many generations below the run that was asked for, or above it if negative. */
export interface FamilyMember extends Child {
  depth: number;
  asks: number;
  needs_attention: boolean;
  reason: string;
  remedy: Remedy | null;
  /** It has children that are not listed. */
  more: boolean;
}

/** `GET runs/{id}/family`. */
export interface Family {
  /** The caller, its caller, and so on. */
  callers: FamilyMember[];
  /** The run itself, and the runs below it: each caller is followed by its children. */
  members: FamilyMember[];
}

/** `GET runs/{id}`, as far as the head of its screen reads it. */
export interface ShownRun {
  id: string;
  flow: string;
  status: RunStatus;
  seq: number;
  failed_node: string | null;
  questions: Question[];
  labels: Record<string, string>;
  parent: string | null;
  created_at: number;
  updated_at: number;
  active_s: number;
  cost: Cost;
  /** The run that started this one. */
  origin: string | null;
  children: Child[];
  /** Of the child runs that have ended. */
  children_cost: Cost;
  /** What it may cost in total; null: no limit. */
  budget?: { usd?: number | null; tokens?: number | null; active_s?: number | null } | null;
  /** Of its plan, if it has one. */
  title?: string;
  goal?: string;
  held_by: string | null;
  queue: string;
  crashed: boolean;
  pausing?: boolean;
  reason: string;
  remedies: Remedy[];
}

/** An attempt at a visit: `GET runs/{id}/nodes/{node}`. */
export interface AttemptView {
  attempt: number;
  status: string;
  started_at: number | null;
  ended_at: number | null;
  failure: FailureView | null;
  retry_at: number | null;
  reason: string | null;
  by: string | null;
  because: {
    kind: "answered" | "claimed" | "resumed" | "retried" | "retry" | "rewound";
    seq: number;
    by?: string | null;
    reason?: string | null;
    holder?: string | null;
  } | null;
  left: { steps: string[]; chunks: number; last_lines: string[]; files: string[] } | null;
}

/** A visit of a node: `GET runs/{id}/nodes/{node}`. */
/** An answer, as the visit shows it. */
export interface AnswerView {
  seq: number;
  at: number;
  answer: Value;
  by: string | null;
  reason: string | null;
  /** It refuses the visit, which then fails. */
  refused: boolean;
}

export interface NodeVisit {
  node: string;
  iteration: number;
  execution: number;
  item: number | null;
  /** Iteration and execution of every visit. */
  visits: [number, number][];
  status: string;
  options: { timeout_s?: number | null; idempotent?: boolean; retry?: Record<string, unknown> };
  causes: { node: string; seq: number; iteration: number; why: string }[];
  input: Record<string, Value> | null;
  /** Operation -> field -> value. */
  output: Record<string, Record<string, Value>> | null;
  next: string[] | null;
  attempts: AttemptView[];
  /** What was asked of it. */
  questions: { key: string; text: string; item: number | null; seq: number; at: number; answers: AnswerView[] }[];
  steps: { name: string; key: string | null; item: number | null; attempt: number; seq: number; at: number; result: Value }[];
  chunks: number;
  artifacts: Record<string, unknown>;
  cost: Cost;
  /** The child runs that it has started; without a status, they were deleted. */
  children: { id: string; flow: string; status: RunStatus | null }[];
  items: { item: number; label: string; value: Value; status: string; attempt: number; failure: FailureView | null }[] | null;
  items_all: number;
  /** In a plan. */
  title?: string;
  capability?: string;
  /** What it returned, if that is not used. */
  returned?: Value | null;
  reasons?: NodeReasons | null;
}

/** What a rule found, and the values that it has read. */
interface Found {
  reason?: string;
  reads?: Record<string, unknown>;
}

/** Why a node of a plan ran, or did not. */
export interface NodeReasons {
  edges: {
    source: string;
    passage: "taken" | "not taken" | "undecided";
    guard: string;
    verdict: boolean | null;
    reads: Record<string, unknown>;
    seq: number | null;
    why: string;
  }[];
  /** Why it was skipped; empty if it was not. */
  skipped: string;
  policies: {
    seq: number;
    stage: "pre" | "post";
    verdict: string;
    decisions: ({ policy: string; verdict: string } & Found)[];
    fault: string;
  }[];
  verifications: { seq: number; ok: boolean; checks: ({ id: string; ok: boolean } & Found)[] }[];
}

/** A decision: `GET runs/{id}/ledger`. */
export interface LedgerEntry {
  seq: number;
  at: number;
  type: string;
  actor: string;
  by: string | null;
  reason: string | null;
  text: string;
  digest: string;
}

export interface Ledger {
  entries: LedgerEntry[];
  next: number | null;
  /** null: not checked. */
  verified: boolean | null;
  problems: string[];
  damage: { seq: number }[];
}

export interface Question {
  key: string;
  node: string;
  text: string;
  options: string[];
  asked_at: number;
  about?: string;
  answer_schema?: Record<string, unknown>;
  item?: number | null;
  until?: number | null;
  on_timeout?: string;
  /** What an attempt that was interrupted left behind. */
  partial?: Record<string, unknown> & { in_doubt?: DoubtfulStep[] };
}

/** A step that must not be called twice, of which it is unknown whether it has happened. */
export interface DoubtfulStep {
  step: string;
  item?: number;
  result_schema?: Record<string, unknown>;
}

/** Visits of one node in a preview. */
export interface PreviewNode {
  node: string;
  first: number;
  last: number;
  status: string;
  at: number | null;
  idempotent: boolean;
  /** The run that has begun the visits, if it is an ancestor of the run that is forked. */
  run?: string | null;
}

/** A child run because of which a run failed: it is resumed with its caller, unless it is left alone. */
export interface PreviewRun {
  run_id: string;
  flow: string;
  caller: string;
  rerun: PreviewNode[];
  asks: PreviewNode[];
  left: string | null;
}

/** A visit that does not clean up when its run is cancelled. */
export interface Uncleaned {
  node: string;
  iteration: number;
  why: string;
  steps?: string[];
  item?: number | null;
}

/** A child run that is cancelled with its caller. */
export interface PreviewCancelled {
  run_id: string;
  flow: string;
  uncleaned: Uncleaned[];
}

/** A signal or an answer that the run has received and a fork of it would not have. */
export interface Missed {
  what: "signal" | "answer";
  name: string;
}

/** What a verb would do: `POST runs/{id}/VERB?preview=1`. */
export interface Preview {
  run_id: string;
  verb: string;
  at: number | null;
  kept: PreviewNode[];
  rerun: PreviewNode[];
  confirm: PreviewNode[];
  asks: PreviewNode[];
  skips: PreviewNode[];
  stops: PreviewNode[];
  uncleaned: Uncleaned[];
  cancels: PreviewCancelled[];
  leaves: string[];
  missed: Missed[];
  closes: Question[];
  family: PreviewRun[];
  refused: string | null;
  error: string | null;
  remedies: Remedy[];
  unknown: string[];
  command: string | null;
  digest: string;
}

/** The state of a node in `GET runs/{id}/picture`. A node that is not listed was not reached. */
export interface NodeMark {
  status: string;
  crashed?: boolean;
  iteration: number;
  execution: number;
  attempt: number;
  tries?: number;
  seconds?: number;
  started_at?: number | null;
  ended_at?: number | null;
  waits_for?: "question" | "signal" | "timer" | "child" | "retry" | null;
  until?: number | null;
  error?: string | null;
  misrouted?: boolean;
  /** It failed and the run continues: with these nodes, or without its result. Its status is "skipped". */
  handled_by?: string[] | null;
  items?: ItemMarks | null;
}

export type ItemStatus = "pending" | "completed" | "cancelled" | "waiting" | "running" | "failed";

/** The items of a fan-out: counts, and at most 200 marks, each with the worst status of its share. */
export interface ItemMarks {
  all: number;
  completed: number;
  failed: number;
  running: number;
  waiting: number;
  marks: ItemStatus[];
}

/** `GET runs/{id}/picture`: the states of the nodes after the event `seq`. */
export interface PictureStates {
  run_id: string;
  seq: number;
  end: number;
  at: number;
  status: string;
  fingerprint: string;
  nodes: Record<string, NodeMark>;
  /** Edges that the run took, as source and target. */
  taken: [string, string][];
  /** Source of a branch -> the targets that its latest visit chose. */
  chosen: Record<string, string[]>;
  /** Edges of a plan that were decided against. */
  not_taken?: [string, string][];
}

/** When an edge of a plan is taken. */
export interface EdgeRule {
  source: string;
  target: string;
  guard?: string;
  /** The failures that it takes. */
  errors?: string[];
}

export type Point = [x: number, y: number];

/** A box of a picture. `members`: the nodes of a stack; `stack`: the open stack in which the node is. */
export interface Box {
  name: string;
  kind: "start" | "end" | "node" | "stack" | "fold";
  x: number;
  y: number;
  w: number;
  h: number;
  diamond?: Point | null;
  members?: string[];
  stack?: string | null;
}

export interface EdgeLine {
  source: string;
  target: string;
  kind: "forward" | "branch" | "loop";
  points: Point[];
  branch?: boolean;
  badge?: Point | null;
}

export interface NodeFacts {
  idempotent?: boolean;
  each?: boolean;
  asks?: boolean;
  safe_to_fail?: boolean;
}

/** `GET pictures/{fingerprint}`: where the boxes and lines of a flow are, in pixels. */
export interface FlowPicture {
  fingerprint: string;
  flow: string;
  width: number;
  height: number;
  boxes: Box[];
  lines: EdgeLine[];
  nodes: Record<string, NodeFacts>;
  max_iterations: number | null;
  rules?: EdgeRule[];
}

/** A place that a run can be resumed or forked from: `GET runs/{id}/checkpoints`. */
export interface Checkpoint {
  seq: number;
  at: number;
  kind: string;
  node: string | null;
  iteration: number;
  execution: number;
  /** False if the run went back to before it. */
  current: boolean;
}

/** An event of a log: `GET runs/{id}/events`, and the event `event` of `GET live?run=ID`. */
export interface RunEvent {
  seq: number;
  at: number;
  kind: string;
  node?: string | null;
  iteration?: number;
  execution?: number;
  attempt?: number;
  by?: string | null;
  body?: Record<string, unknown>;
}

/** A time in which one process held the run: `GET runs/{id}/timeline`. Every piece of a timeline has the event that began it. */
export interface HolderSpan {
  seq: number;
  holder: string | null;
  started_at: number;
  ended_at: number | null;
  end: "released" | "drained" | "died" | "replaced" | null;
}

/** An attempt of a node, or of an item of a fan-out with at most 8 items. */
export interface AttemptSpan {
  seq: number;
  node: string;
  iteration: number;
  execution: number;
  attempt: number;
  item?: number | null;
  status: string;
  started_at: number;
  ended_at?: number | null;
  error?: string | null;
  retry_at?: number | null;
  /** It failed for good, and an error edge took the failure. */
  handled?: boolean;
  /** False if a rewind has undone it. */
  current?: boolean;
}

/** A time in which a visit, or without `node` the whole run, waited. */
export interface WaitSpan {
  seq: number;
  kind: "retry" | "timer" | "signal" | "question" | "child" | "holder";
  node?: string | null;
  item?: number | null;
  started_at: number;
  ended_at?: number | null;
  until?: number | null;
  reason: string;
  current?: boolean;
}

/** The items of one visit of a large fan-out; `running` and `failed` count attempts in equal parts of its time. */
export interface ItemSpan {
  seq: number;
  node: string;
  iteration: number;
  execution: number;
  items: number;
  started_at: number;
  ended_at: number | null;
  attempts: number;
  counts: Record<string, number>;
  /** Over equal parts of its time: how many attempts ran, how many failed or crashed, and how many of these crashed. */
  running: number[];
  failed: number[];
  crashed: number[];
  current?: boolean;
}

/** What a person or a program did to the run. */
export interface Act {
  seq: number;
  at: number;
  verb: string;
  by?: string | null;
  reason?: string | null;
  node?: string | null;
  about?: string | null;
  answer?: unknown;
}

/** `GET runs/{id}/timeline`: what happened when, in pages. */
export interface Timeline {
  run_id: string;
  seq: number;
  started_at: number;
  ended_at: number;
  beginning: string;
  holders: HolderSpan[];
  attempts: AttemptSpan[];
  items: ItemSpan[];
  waits: WaitSpan[];
  acts: Act[];
  forks: { run_id: string; to: number | null; at: number; by: string | null; reason: string | null }[];
  next: number | null;
}

/** An open question: `GET questions`. If `whole` is false, its text is only the first line. */
export interface AskedQuestion {
  run_id: string;
  flow: string;
  question: Question;
  whole?: boolean;
}

/** What follows from an answer; `answer` is null for every answer that is not listed. */
export interface AnswerOutcome {
  answer: string | null;
  effect: string;
  nodes: string[];
  once: string[];
  words: string;
}

/** How a question was closed. */
export interface Closing {
  how: "answered" | "timed out" | "withdrawn";
  at: number | null;
  answer: unknown;
  by: string | null;
  reason: string | null;
}

/** A question with what follows from each answer: `GET runs/{id}/questions`. */
export interface QuestionDetails extends AskedQuestion {
  seq: number;
  iteration: number;
  execution: number;
  outcomes: AnswerOutcome[];
  /** What happens if no answer comes in time. */
  then: string | null;
  closing: Closing | null;
  state: Record<string, Value> | null;
}

/** A request that no engine has carried out yet, or that was refused: `GET runs/{id}/requests`. */
export interface RunRequest {
  id: string;
  verb: string;
  about: string | null;
  status: "waiting" | "refused";
  by: string | null;
  reason: string | null;
  at: number;
  refused: string | null;
  refused_at: number | null;
}

/** A node in one of two runs that are compared. */
export interface NodeSide {
  status: string;
  iteration: number;
  tries: number;
  seconds: number;
  cost: Cost;
}

export interface ComparedNode {
  node: string;
  a: NodeSide | null;
  b: NodeSide | null;
  shared: boolean;
  differs: string[];
}

export interface ComparedRun {
  id: string;
  flow: string;
  status: RunStatus;
  error: string | null;
  seq: number;
  parent: string | null;
}

/** `GET compare`. */
export interface Comparison {
  a: ComparedRun;
  b: ComparedRun;
  shared: { run_id: string; seq: number } | null;
  forked: RunEvent | null;
  edits: RunEvent[];
  nodes: ComparedNode[];
  changes: Change[];
  equal: number;
}
