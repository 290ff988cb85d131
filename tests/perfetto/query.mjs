// node query.mjs ENGINE TRACE SQL... : the rows of each query, as JSON.
//
// ENGINE is a folder with Perfetto's trace processor for the web: trace_processor.wasm,
// its loader engine_bundle.node.js, and engine.mjs, which speaks its protocol.
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import vm from "node:vm";

const [folder, trace, ...queries] = process.argv.slice(2);

// The loader expects to be a worker of a page that fetches the WebAssembly file.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.location ??= { href: pathToFileURL(folder).href };
globalThis.engineBytes = fs.readFileSync(path.join(folder, "trace_processor.wasm"));
const ready = new Promise((resolve) => (globalThis.engineReady = resolve));
const edits = [
  ["this.useMemory64 = hasMemory64Support();", "this.useMemory64 = false;"],
  ["locateFile: (s) => s,", "locateFile: (s) => s, wasmBinary: engineBytes,"],
  ["deferredRuntimeInitialized.then(() => {", "$&queueMicrotask(engineReady);"],
];
let loader = fs.readFileSync(path.join(folder, "engine_bundle.node.js"), "utf8");
for (const [before, after] of edits) {
  if (!loader.includes(before)) throw new Error(`the loader lacks ${before}`);
  loader = loader.replace(before, after);
}
vm.runInThisContext(loader);
await ready;

const { EngineBase } = await import(pathToFileURL(path.join(folder, "engine.mjs")).href);
const channel = new MessageChannel();
self.onmessage({ data: channel.port1 });

class Engine extends EngineBase {
  mode = "WASM";
  id = "test";
  rpcSendRequestBytes(bytes) {
    channel.port2.postMessage(bytes);
  }
}

const engine = new Engine();
channel.port2.onmessage = (message) => engine.onRpcResponseBytes(message.data);
console.warn = () => {}; // about fields that the decoder does not know
await engine.parse(new Uint8Array(fs.readFileSync(trace)));
await engine.notifyEof();
const answers = [];
for (const query of queries) {
  const result = await engine.query(query);
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    rows.push(Object.fromEntries(result.columns().map((name) => [name, row.get(name)])));
  }
  answers.push(rows);
}
const plain = (_, value) => (typeof value === "bigint" ? Number(value) : value);
process.stdout.write(JSON.stringify(answers, plain) + "\n");
process.exit(0);
