//! The daemon: listeners, limits, faults of the machine, TLS, reload, capture, tap and the admin endpoint.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

mod acknowledge;
mod admin;
mod api;
mod backpressure;
mod balancer;
mod capture;
mod daemon;
mod daemon_full_disk;
mod faults;
mod faults_clock;
mod faults_pace;
mod grace;
mod identity;
mod keep_alive;
mod memory;
mod memory_flood;
mod oneshots;
mod orphans;
mod peers;
mod prometheus;
mod proxy;
mod quarantine;
mod reload;
mod reload_load;
mod rules;
mod service;
mod shed;
mod sink_faults;
mod spool;
mod spool_directory;
mod spool_lives;
mod spool_small_disk;
mod tap;
mod threads;
mod tls;
mod tls_reload;
mod transport;
mod wrong_client;

use tributary_testing::{
    common, endless as endless_support, http_server, live, rbkit_law as rbkit_law_support,
    sink_file as sink_file_support, small_disk, tls as tls_support, zico as zico_support,
};
