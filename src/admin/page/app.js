// The frame of the page: navigation, the connection's state, the token, and the view that the address names.

import { forgetToken, get, hasToken, link, linkState, pause, setToken } from "./api.js";
import { clean, h, renew, set } from "./dom.js";
import { listenForKeys, showHelp } from "./help.js";
import { failure, words } from "./parts.js";
import { onPulse, startPulse } from "./pulse.js";
import { parse } from "./router.js";
import * as units from "./units.js";

const VIEWS = ["overview", "services", "map", "agents", "live", "traces", "profiles", "heap", "code", "machines", "losses"];

const main = document.getElementById("main");
const banner = document.getElementById("banner");
const status = document.getElementById("status");
const badges = {};
let view = null;
let opening = 0;
/** The links that had the focus in addresses that were left: Back returns to them. */
const left = new Map();
let shown = "";

/** Opens the view of the address. One that is open already may take the new address itself. */
async function open() {
	const route = parse(location.hash);
	const name = VIEWS.includes(route.view) ? route.view : "overview";
	for (const item of document.querySelectorAll("#nav a")) {
		if (item.dataset.view === name) {
			item.setAttribute("aria-current", "page");
			item.scrollIntoView({ block: "nearest", inline: "center" });
		} else {
			item.removeAttribute("aria-current");
		}
	}
	document.title = `${words(name)} – tributary`;
	const turn = ++opening;
	const hadFocus = main.contains(document.activeElement);
	if (hadFocus) left.set(shown, document.activeElement.closest("a")?.getAttribute("href"));
	shown = location.hash;
	view?.end();
	view = null;
	pause(false);
	if (linkState() === "unauthorized") {
		askToken(hasToken());
		return;
	}
	try {
		const module = await import(`./${name}.js`);
		if (turn !== opening) return;
		set(main);
		view = module.show(main, route);
		if (hadFocus) main.focus({ preventScroll: true });
		returnFocus(left.get(shown), turn);
	} catch (error) {
		if (turn === opening) set(main, failure(error));
	}
}

/** Gives the focus to the link with this address as soon as it is there, unless something else has it then. */
function returnFocus(href, turn) {
	if (!href) return;
	const watch = new MutationObserver(() => {
		const link = [...main.querySelectorAll("a")].find((one) => one.getAttribute("href") === href);
		if (link || turn !== opening || document.activeElement !== main) watch.disconnect();
		if (link && turn === opening && document.activeElement === main) link.focus();
	});
	watch.observe(main, { childList: true, subtree: true });
}

function askToken(isWrong) {
	opening += 1;
	view?.end();
	view = null;
	const input = h("input", { type: "password", id: "token", autocomplete: "off", required: true, "aria-label": "Token" });
	const enter = async (event) => {
		event.preventDefault();
		setToken(input.value.trim());
		try {
			await get("api/v1/overview");
			open();
		} catch (error) {
			if (error.status === 401) {
				forgetToken();
				askToken(true);
			}
		}
	};
	set(main, h("section", { class: "panel" }, h("div", { class: "empty" },
		h("strong", {}, isWrong ? "This token is wrong" : "The daemon wants its token"),
		h("p", {}, "It is in the file that [admin] token_file names. This tab keeps it until it is closed, and sends it to this daemon only."),
		h("form", { class: "row", on: { submit: enter } }, input, h("button", { type: "submit", class: "primary" }, "Continue")))));
	input.focus();
}

function say(kind, text, { stays = true } = {}) {
	const close = h("button", { class: "plain", type: "button", "aria-label": "Close", on: { click: () => set(banner) } }, "✕");
	set(banner, h("div", { class: kind }, h("span", {}, text), stays && close));
}

function drawStatus(overview) {
	const { ready } = overview;
	const state = ready.is_ready ? (ready.notes.length ? "warn" : "good") : "bad";
	renew(status,
		h("div", { title: clean([ready.text, ...ready.notes].join("\n"), 600) }, h("span", { class: `dot ${state}` }), h("span", { class: "words" }, ready.is_ready ? (ready.notes.length ? "Ready, with notes" : "Ready") : "Not ready")),
		h("div", { class: "more" }, `up ${units.millis(overview.uptime_ms)}`),
		h("div", { class: "more" }, `version ${clean(overview.version, 40)}`),
		hasToken() && forget, help);
	const losses = overview.listeners.reduce((sum, listener) => sum + listener.losses, 0);
	badges.losses.textContent = losses ? units.brief(losses) : "";
	badges.losses.className = "badge bad";
}

const forget = h("button", { class: "plain more", type: "button", on: { click: () => { forgetToken(); location.reload(); } } }, "Forget the token");
const help = h("button", { class: "plain help-button", type: "button", title: "Keyboard", "aria-label": "Keyboard help", on: { click: showHelp } }, "?");

function drawLink(event) {
	const { state, wrong } = event.detail;
	if (state === "lost") {
		say("bad", "The daemon does not answer. Asking again every 2 s…", { stays: false });
		set(status, h("div", {}, h("span", { class: "dot bad" }), h("span", { class: "words" }, "No connection")));
	} else if (state === "unauthorized") {
		set(banner);
		askToken(wrong);
	} else if (banner.firstChild?.classList.contains("bad")) {
		say("good", "Connected again.");
	}
}

const nav = document.getElementById("nav");
for (const name of VIEWS) {
	badges[name] = h("span", { class: "badge" });
	nav.append(h("a", { href: `#/${name}`, "data-view": name }, words(name), badges[name]));
}
link.addEventListener("state", drawLink);
addEventListener("hashchange", open);
onPulse((overview, isRestarted) => {
	drawStatus(overview);
	if (isRestarted) {
		say("good", `The daemon restarted at ${units.clock(overview.now_ms - overview.uptime_ms, 0)}. Connected again; what the view held before is gone.`);
	}
});
listenForKeys(main, [...nav.children]);
startPulse();
open();
