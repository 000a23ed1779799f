//! The files of the page, which are part of the program. They hold no data, so no token is needed to read them.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use hyper::{Response, StatusCode};

use super::response::{AdminResponse, no_sniffing};
use tributary_codec::digest::short_digest_of;

/// A file of the page.
struct File {
    /// Its path in a request, without the slash.
    path: &'static str,
    content: &'static [u8],
}

/// Declares files by their names in this folder.
macro_rules! files {
    ($($path:literal),* $(,)?) => {
        &[$(File { path: $path, content: include_bytes!($path) }),*]
    };
}

/// Every file. The test of this module compares it with the folder.
const FILES: &[File] = files![
    "agents.js",
    "api.js",
    "app.js",
    "brush.js",
    "canvas.js",
    "code.js",
    "colors.js",
    "compare.js",
    "dom.js",
    "events.js",
    "flame.js",
    "heap.js",
    "heat.js",
    "help.js",
    "icon.svg",
    "index.html",
    "live.js",
    "losses.js",
    "machines.js",
    "map.js",
    "names.js",
    "overview.js",
    "parts.js",
    "profiles.js",
    "pulse.js",
    "range.js",
    "router.js",
    "scatter.js",
    "services.js",
    "spans.js",
    "stacks.js",
    "style.css",
    "table.js",
    "timeline.js",
    "traces.js",
    "treemap.js",
    "units.js",
    "waterfall.js",
];

/// What the browser may load and run: the files of the page and the API, nothing from elsewhere and nothing inline.
const POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

/// Whether a path is that of a file of the page.
pub(super) fn has(path: &str) -> bool {
    find(path).is_some()
}

/// The file with this path.
pub(super) fn respond(path: &str, headers: &HeaderMap) -> Option<AdminResponse> {
    let file = find(path)?;
    let etag = format!("\"{}\"", short_digest_of(file.content));
    let is_known = headers.get_all(IF_NONE_MATCH).iter().any(|known| known.as_bytes() == etag.as_bytes());
    let body = if is_known { Bytes::new() } else { Bytes::from_static(file.content) };
    let mut response = Response::new(Full::new(body).boxed_unsync());
    *response.status_mut() = if is_known { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type(file.path)));
    // The browser asks each time whether the file has changed: after an update of the daemon the page is the new one.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.extend(HeaderValue::from_str(&etag).ok().map(|etag| (ETAG, etag)));
    headers.insert("content-security-policy", HeaderValue::from_static(POLICY));
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    no_sniffing(headers);
    Some(response)
}

fn find(path: &str) -> Option<&'static File> {
    let name = match path.strip_prefix('/')? {
        "" => "index.html",
        name => name,
    };
    FILES.iter().find(|file| file.path == name)
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_file_of_the_folder_is_served_with_a_known_type() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/admin/page");
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let names: BTreeSet<String> = names.filter(|name| name != "mod.rs").collect();
        let served: BTreeSet<String> = FILES.iter().map(|file| file.path.to_owned()).collect();
        assert_eq!(served, names, "FILES and src/admin/page differ");
        assert!(FILES.iter().all(|file| content_type(file.path) != "application/octet-stream"));
    }

    #[test]
    fn the_files_are_at_most_260_kilobytes() {
        let bytes: usize = FILES.iter().map(|file| file.content.len()).sum();
        assert!(bytes <= 260 * 1000, "{bytes} bytes");
    }
}
