// The overview of the daemon, asked for every two seconds: the bar and the view "Overview" show it.

import { get, poll } from "./api.js";

const MS = 2000;

const listeners = new Set();
let latest = null;
/** How far the daemon's clock is ahead of the browser's. */
let ahead = 0;

/** The daemon's present time, in Unix milliseconds. */
export const serverNow = () => Date.now() + ahead;

/** Calls `use(overview, isRestarted)` with each answer, and at once with the last one. Returns a function that ends it. */
export function onPulse(use) {
	listeners.add(use);
	if (latest) use(latest, false);
	return () => listeners.delete(use);
}

export function startPulse() {
	return poll((signal) => get("api/v1/overview", {}, signal), MS, (overview) => {
		const isRestarted = latest !== null && latest.instance !== overview.instance;
		latest = overview;
		ahead = overview.now_ms - Date.now();
		for (const use of listeners) use(overview, isRestarted);
	}, () => {}, { isAlways: true });
}
