//! The options of an `otlp` listener.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tributary_memory::Amplification;
use tributary_options::{Bounds, LONGEST, options};
use tributary_protocol::repeats::REPEAT_BYTES;

/// The port of OTLP over gRPC.
const GRPC_PORT: u16 = 4317;

options! {
    /// Options of an `otlp` listener.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Options {
        /// The IP address and port of gRPC, beside `listen`. Both take every kind of request. Empty: none.
        pub grpc: Option<SocketAddr> = address_or_none(SocketAddr::from((Ipv4Addr::LOCALHOST, GRPC_PORT))),
        /// The largest body as it is transmitted.
        pub max_body_bytes: u64 = size(20 << 20, 1 << 10..=1 << 30),
        /// The largest body when it is decompressed.
        pub max_inflated_bytes: u64 = size(32 << 20, 1 << 10..=1 << 30),
        /// The number of attributes of a span, a log or a point, and of each link and event of a span; further ones are counted and
        /// dropped.
        pub max_attributes: usize = count(4_096, 1..=1_000_000),
        /// The number of entries of each table of the dictionary of profiles, of the lines of all locations, and of the locations of
        /// all stacks.
        pub max_profile_entries: usize = count(1_000_000, 1..=100_000_000),
        /// The number of frames of a stack; the outermost ones of a deeper stack are left out.
        pub max_frames: usize = count(1_024, 1..=1_000_000),
        /// The longest text; a longer one is cut at a character.
        pub max_text_bytes: u64 = size(256 << 10, 16..=16 << 20),
        /// How long a request is remembered after it was delivered. One that is sent again, because its sender did not wait for the
        /// answer, is answered and counted, and not written again. "0s": none is.
        pub repeat_time: Duration = duration(Duration::from_secs(60), Duration::ZERO..=LONGEST),
        /// The number of requests that are remembered.
        pub max_repeats: usize = count(10_000, 1..=10_000_000),
        /// How much output a request may cause.
        pub amplification: Amplification = section(
            |section| Amplification::read(section, Amplification { ratio: 64, burst: 64 << 20, rate: 4 << 20 })
        ),
    }
}

impl Options {
    /// Declares the memory that a listener can use beside its requests.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        bounds.need(self.max_body_bytes.saturating_add(self.max_inflated_bytes));
        let what = format!("{} requests whose repeats are recognised (max_repeats)", self.max_repeats);
        bounds.add(of, what, self.max_repeats as u64 * REPEAT_BYTES);
    }
}
