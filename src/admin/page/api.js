// Requests to the daemon: the token, the connection's state, and streams.

import { settled } from "./dom.js";

const TOKEN = "tributary.token";
const RETRY_MS = 2000;

/** Tells of changes of the state: connected, lost, unauthorized. */
export const link = new EventTarget();
let state = "connected";
/** The token where the tab has no storage. */
let memory = null;

export function linkState() {
	return state;
}

function become(next, detail) {
	if (state === next) return;
	state = next;
	link.dispatchEvent(new CustomEvent("state", { detail: { state: next, ...detail } }));
	if (next === "lost") probe();
}

/** Asks until the daemon answers again. */
const probe = settled(async () => {
	if (state !== "lost") return;
	try {
		await send("livez", {});
	} catch {
		probe();
	}
}, RETRY_MS);

export function setToken(token) {
	try {
		sessionStorage.setItem(TOKEN, token);
	} catch {
		memory = token;
	}
}

export function forgetToken() {
	memory = null;
	try {
		sessionStorage.removeItem(TOKEN);
	} catch {
		// The tab has no storage: the token was in memory only.
	}
}

function token() {
	try {
		return sessionStorage.getItem(TOKEN) ?? memory;
	} catch {
		return memory;
	}
}

export function hasToken() {
	return token() !== null;
}

/** An answer that is no success: `status`, and what the daemon says as the message. */
export class Refused extends Error {
	constructor(status, message) {
		super(message);
		this.status = status;
	}
}

async function send(path, options) {
	const headers = { ...options.headers };
	const given = token();
	if (given !== null) headers.authorization = `Bearer ${given}`;
	let response;
	try {
		response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", referrerPolicy: "no-referrer" });
	} catch (error) {
		if (error.name !== "AbortError") become("lost");
		throw error;
	}
	if (response.status === 401) {
		become("unauthorized", { wrong: given !== null });
		throw new Refused(401, "the token is missing or wrong");
	}
	become("connected");
	return response;
}

/** A response that is a success. */
async function ask(path, options) {
	const response = await send(path, options);
	if (response.ok) return response;
	throw await refusal(response);
}

async function refusal(response) {
	const text = await response.text().catch(() => "");
	let message = text.trim();
	try {
		message = JSON.parse(text).error ?? message;
	} catch {
		// A plain text.
	}
	return new Refused(response.status, message || `the daemon answered ${response.status}`);
}

/** The address of a path with parameters; absent and empty ones are left out. */
export function address(path, parameters = {}) {
	const query = new URLSearchParams();
	for (const [name, value] of Object.entries(parameters)) {
		if (value !== null && value !== undefined && value !== "") query.set(name, value);
	}
	const text = query.toString();
	return text ? `${path}?${text}` : path;
}

/** The JSON of a path. */
export async function get(path, parameters, signal) {
	const response = await ask(address(path, parameters), { signal });
	return response.json();
}

/** The JSON of a path that has events: see `parseExact`. */
export async function getEvents(path, parameters, signal) {
	const response = await ask(address(path, parameters), { signal });
	return parseExact(await response.text());
}

/** Parses JSON without changing a number: one that JavaScript would write in another way keeps its text (`JSON.rawJSON`). */
function parseExact(text) {
	if (!JSON.rawJSON) return JSON.parse(text);
	return JSON.parse(text, (_, value, { source }) => typeof value === "number" && String(value) !== source ? JSON.rawJSON(source) : value);
}

/** The number of a value that `parseExact` may have kept as text. */
export function numberOf(value) {
	return Number(value?.rawJSON ?? value ?? NaN);
}

/** The bytes of a path. */
export async function getBlob(path, parameters) {
	const response = await ask(address(path, parameters), {});
	return response.blob();
}

/** Sends a command; returns the daemon's answer. */
export async function post(path, parameters) {
	const response = await ask(address(path, parameters), { method: "POST", headers: { "x-tributary": "1" } });
	return response.json();
}

let isPaused = false;

/** Stops or continues the updates of the view. What is asked for by `now()` is answered also while they are stopped. */
export function pause(isStopped) {
	isPaused = isStopped;
	if (!isPaused) link.dispatchEvent(new Event("continue"));
}

export const arePaused = () => isPaused;

/**
 * Calls `use` with the answer of a path, again every `ms` while the tab is visible and the updates are not paused (`isAlways`: also then).
 * Errors go to `fail`. Returns a function that ends it; its `now()` asks at once.
 */
export function poll(request, ms, use, fail = () => {}, { isAlways = false } = {}) {
	let ended = false;
	let timer = 0;
	let controller = new AbortController();
	const isStopped = () => isPaused && !isAlways;
	const later = () => {
		if (!isStopped()) turn();
	};
	const turn = async () => {
		clearTimeout(timer);
		if (ended) return;
		if (!document.hidden && state !== "unauthorized") {
			controller.abort();
			controller = new AbortController();
			const { signal } = controller;
			try {
				const answer = await request(signal);
				if (!ended && !signal.aborted) use(answer);
			} catch (error) {
				if (error.name === "AbortError") return;
				if (!ended) fail(error);
			}
		}
		clearTimeout(timer);
		if (!ended && ms) timer = setTimeout(later, ms);
	};
	const wake = () => {
		if (!document.hidden) later();
	};
	const reconnected = (event) => {
		if (event.detail.state === "connected") turn();
	};
	document.addEventListener("visibilitychange", wake);
	link.addEventListener("state", reconnected);
	link.addEventListener("continue", turn);
	const end = () => {
		ended = true;
		clearTimeout(timer);
		controller.abort();
		document.removeEventListener("visibilitychange", wake);
		link.removeEventListener("state", reconnected);
		link.removeEventListener("continue", turn);
	};
	end.now = turn;
	turn();
	return end;
}

/**
 * Reads Server-Sent Events with `fetch`, because `EventSource` cannot send the token. Opens the stream again when it ends.
 * `use(type, data)` gets each event, `tell` "open" or "closed". Returns a function that ends it.
 */
export function stream(path, parameters, use, tell = () => {}) {
	const controller = new AbortController();
	let ended = false;
	const run = async () => {
		while (!ended) {
			try {
				const response = await ask(address(path, parameters), { signal: controller.signal });
				tell("open");
				await readEvents(response.body, use);
			} catch (error) {
				if (ended || error.name === "AbortError") return;
				if (error instanceof Refused && error.status !== 401) {
					tell("refused", error);
					// Too many live views: a later try may succeed. Anything else stays wrong.
					if (error.status !== 503) return;
				}
			}
			if (ended) return;
			tell("closed");
			await new Promise((done) => setTimeout(done, RETRY_MS));
		}
	};
	run();
	return () => {
		ended = true;
		controller.abort();
	};
}

async function readEvents(body, use) {
	const reader = body.pipeThrough(new TextDecoderStream()).getReader();
	let rest = "";
	for (;;) {
		const { value, done } = await reader.read();
		if (done) return;
		rest += value;
		const parts = rest.split("\n\n");
		rest = parts.pop();
		for (const part of parts) {
			let [type, data] = ["message", ""];
			for (const line of part.split("\n")) {
				if (line.startsWith("event:")) type = line.slice(6).trim();
				else if (line.startsWith("data:")) data += line.slice(line[5] === " " ? 6 : 5);
			}
			if (data) use(type, parseExact(data));
		}
	}
}
