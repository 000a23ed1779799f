//! The options of an `endless` listener.

use tributary_memory::Amplification;
use tributary_options::{Bounds, Section, options};

use super::dedup::Dedup;

options! {
    /// Options of an `endless` listener.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Options checked by check {
        /// The part of the path before /VERSION/HASH, e.g. "/metrics".
        pub path_prefix: String = text(""),
        /// The largest body, as transmitted.
        pub max_body_bytes: u64 = size(16 << 20, 1 << 10..=1 << 30),
        /// The largest bundle, after decompression. The default is three times what an agent can store.
        pub max_inflated_bytes: u64 = size(32 << 20, 1 << 10..=1 << 30),
        /// The largest payload that is shown; the event of a larger one is emitted without it. Agents drop events of more than
        /// 100 kB.
        pub max_payload_bytes: u64 = size(256 << 10, 1 << 10..=64 << 20),
        /// The largest sum of image id and site, which every event of a bundle repeats.
        pub max_channel_bytes: u64 = size(64 << 10, 1 << 10..=16 << 20),
        /// The memory that recognises repeated uploads.
        pub dedup: Dedup = section(Dedup::read),
        /// How much output an upload may cause.
        pub amplification: Amplification = section(
            |section| Amplification::read(section, Amplification { ratio: 256, burst: 16 << 20, rate: 4 << 20 })
        ),
    }
}

impl Options {
    fn check(&mut self, section: &mut Section<'_>) {
        let is_path = self.path_prefix.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte));
        if !self.path_prefix.is_empty() && (!self.path_prefix.starts_with('/') || !is_path) {
            section.error("path_prefix", "`path_prefix` is not a path", Some("for example \"/metrics\"".into()));
        }
        self.path_prefix.truncate(self.path_prefix.trim_end_matches('/').len());
    }

    /// Declares the most memory that a listener takes beside the shared budget.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        let what = format!("{} uploads and events remembered (dedup.entries)", self.dedup.entries);
        bounds.add(of, what, self.dedup.max_memory_bytes());
        bounds.need(self.max_body_bytes.max(self.max_inflated_bytes));
    }
}
