// Addresses within the page: `#/view/id?query`. A view's whole state is in its address, so every view can be linked.

/** The parts of an address: the view, the id within it, and its parameters. */
export function parse(hash) {
	const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
	const [view = "", ...rest] = path.split("/");
	let id = rest.join("/");
	try {
		id = decodeURIComponent(id);
	} catch {
		// Not encoded: as it stands.
	}
	return { view: view || "overview", id: id || null, query: new URLSearchParams(query) };
}

export function here() {
	return parse(location.hash);
}

/** The address of a view. Parameters that are empty are left out. */
export function to(view, id = null, parameters = {}) {
	const query = new URLSearchParams();
	for (const [name, value] of Object.entries(parameters)) {
		if (value !== null && value !== undefined && value !== "") query.set(name, value);
	}
	const text = query.toString();
	return `#/${view}${id === null ? "" : `/${encodeURIComponent(id)}`}${text ? `?${text}` : ""}`;
}

export function go(view, id = null, parameters = {}) {
	location.hash = to(view, id, parameters);
}

/** Changes parameters of this view's address, without an entry in the history and without opening the view again. */
export function keep(parameters) {
	const { view, id, query } = here();
	const address = to(view, id, { ...Object.fromEntries(query), ...parameters });
	history.replaceState(null, "", address);
}

/** The same with an entry in the history: Back takes the change back. */
export function step(parameters) {
	const before = location.href;
	const { view, id, query } = here();
	const address = to(view, id, { ...Object.fromEntries(query), ...parameters });
	if (new URL(address, before).href !== before) history.pushState(null, "", address);
}
