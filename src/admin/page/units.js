// Numbers as people read them, always with their unit.

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const SCALES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const MISSING = "–";

/** Three significant digits, without zeros at the end. */
function short(value) {
	const size = Math.abs(value);
	if (size >= 99.95) return value.toFixed(0);
	if (size >= 9.995) return value.toFixed(1);
	return value.toFixed(2);
}

export function bytes(value) {
	if (!Number.isFinite(value)) return MISSING;
	let [scaled, unit] = [value, 0];
	while (Math.abs(scaled) >= 1023.5 && unit < BYTES.length - 1) {
		scaled /= 1024;
		unit += 1;
	}
	return `${unit === 0 ? Math.round(scaled) : short(scaled)} ${BYTES[unit]}`;
}

/** A number of things: exact, with groups of three digits. */
export function count(value) {
	return Number.isFinite(value) ? Math.round(value).toLocaleString("en") : MISSING;
}

/** A number of things, in four characters or so. */
export function brief(value) {
	if (!Number.isFinite(value)) return MISSING;
	for (const [scale, unit] of SCALES) {
		if (Math.abs(value) >= scale * 0.9995) return `${short(value / scale)} ${unit}`;
	}
	return Number.isInteger(value) ? String(value) : short(value);
}

export function plural(value, one, many = `${one}s`) {
	return `${count(value)} ${value === 1 ? one : many}`;
}

/** Things per second. */
export function rate(value) {
	if (!Number.isFinite(value)) return MISSING;
	return value === 0 ? "0/s" : `${value < 0.01 ? "<0.01" : brief(value)}/s`;
}

export function byteRate(value) {
	return Number.isFinite(value) ? `${bytes(value)}/s` : MISSING;
}

/** A duration in nanoseconds. */
export function nanos(value) {
	if (!Number.isFinite(value)) return MISSING;
	const size = Math.abs(value);
	if (size === 0) return "0 ns";
	if (size < 999.5) return `${Math.round(value)} ns`;
	if (size < 999.5e3) return `${short(value / 1e3)} µs`;
	if (size < 999.5e6) return `${short(value / 1e6)} ms`;
	if (size < 99.95e9) return `${short(value / 1e9)} s`;
	return millis(value / 1e6);
}

/** A duration in milliseconds, as of uptimes: its two largest units. */
export function millis(value) {
	if (!Number.isFinite(value)) return MISSING;
	if (value < 1000) return `${Math.round(value)} ms`;
	const seconds = Math.round(value / 1000);
	const parts = [[Math.floor(seconds / 86400), "d"], [Math.floor(seconds / 3600) % 24, "h"], [Math.floor(seconds / 60) % 60, "min"], [seconds % 60, "s"]];
	const first = parts.findIndex(([number]) => number > 0);
	return parts.slice(first, first + 2).filter(([number], at) => at === 0 || number > 0).map(([number, unit]) => `${number} ${unit}`).join(" ");
}

export function percent(part, whole) {
	if (!whole) return MISSING;
	const value = (100 * part) / whole;
	return value > 0 && value < 0.1 ? "<0.1 %" : `${value >= 99.95 || value === 0 ? value.toFixed(0) : value.toFixed(1)} %`;
}

/** The number of a quantity in its unit: `nanoseconds`, `bytes`, or a count. */
export function quantity(value, unit) {
	if (unit === "nanoseconds" || unit === "ns") return nanos(value);
	if (unit === "bytes" || unit === "By") return bytes(value);
	return count(value);
}

/** The time of day of an RFC 3339 text, or of Unix milliseconds, here. */
export function clock(at, digits = 3) {
	const date = new Date(at ?? NaN);
	if (Number.isNaN(date.getTime())) return MISSING;
	const two = (number) => String(number).padStart(2, "0");
	const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
	return digits > 0 ? `${time}.${String(date.getMilliseconds()).padStart(3, "0").slice(0, digits)}` : time;
}

/** Day and time here, in full. */
export function moment(at) {
	const date = new Date(at ?? NaN);
	if (Number.isNaN(date.getTime())) return MISSING;
	const two = (number) => String(number).padStart(2, "0");
	return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(at, 0)}`;
}

/** How long ago. `now`: Unix milliseconds. */
export function ago(at, now = Date.now()) {
	const past = now - new Date(at ?? NaN).getTime();
	if (Number.isNaN(past)) return MISSING;
	return past < 1500 ? "now" : `${millis(past).split(" ").slice(0, 2).join(" ")} ago`;
}
