//! The options of an `endless` listener.

use tributary_memory::Amplification;
use tributary_options::{Bounds, Section};

use super::dedup::Dedup;

/// Options of an `endless` listener.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The part of the path before `/<version>/<hash>`, e.g. `/metrics`. Empty, the default: none.
    pub path_prefix: String,
    /// The largest body, as transmitted. 16 MiB. 1 KiB to 1 GiB.
    pub max_body_bytes: u64,
    /// The largest bundle, after decompression. 32 MiB: three times what an agent can store. 1 KiB to 1 GiB.
    pub max_inflated_bytes: u64,
    /// The largest payload that is shown; the event of a larger one is emitted without its payload. 256 KiB: agents drop
    /// events of more than 100 kB. 1 KiB to 64 MiB.
    pub max_payload_bytes: u64,
    /// The largest sum of image id and site, which every event of a bundle repeats. 64 KiB. 1 KiB to 16 MiB.
    pub max_channel_bytes: u64,
    /// Limits of the memory that recognises repeated uploads.
    pub dedup: Dedup,
    /// How much output an upload may cause per byte that was transmitted. 256; 16 MiB; 4 MiB.
    pub amplification: Amplification,
}

impl Options {
    /// Reads the options; faults are reported to the section.
    pub fn read(section: &mut Section<'_>) -> Self {
        let default = Options::default();
        let sizes = || 1 << 10..=1 << 30;
        let mut options = Options {
            path_prefix: section.text("path_prefix", &default.path_prefix),
            max_body_bytes: section.size("max_body_bytes", default.max_body_bytes, sizes()),
            max_inflated_bytes: section.size("max_inflated_bytes", default.max_inflated_bytes, sizes()),
            max_payload_bytes: section.size("max_payload_bytes", default.max_payload_bytes, 1 << 10..=64 << 20),
            max_channel_bytes: section.size("max_channel_bytes", default.max_channel_bytes, 1 << 10..=16 << 20),
            dedup: section.section("dedup", Dedup::read),
            amplification: section
                .section("amplification", |section| Amplification::read(section, default.amplification)),
        };
        let is_path = options.path_prefix.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte));
        if !options.path_prefix.is_empty() && (!options.path_prefix.starts_with('/') || !is_path) {
            section.error("path_prefix", "`path_prefix` is not a path", Some("for example \"/metrics\"".into()));
        }
        options.path_prefix.truncate(options.path_prefix.trim_end_matches('/').len());
        options
    }
}

impl Options {
    /// Declares the most memory that a listener takes beside the shared budget.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        let what = format!("{} uploads and events remembered (dedup.entries)", self.dedup.entries);
        bounds.add(of, what, self.dedup.max_memory_bytes());
        bounds.need(self.max_body_bytes.max(self.max_inflated_bytes));
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            path_prefix: String::new(),
            max_body_bytes: 16 << 20,
            max_inflated_bytes: 32 << 20,
            max_payload_bytes: 256 << 10,
            max_channel_bytes: 64 << 10,
            dedup: Dedup::default(),
            amplification: Amplification { ratio: 256, burst: 16 << 20, rate: 4 << 20 },
        }
    }
}
