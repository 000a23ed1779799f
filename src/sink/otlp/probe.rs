//! A look at a receiver: whether it takes an empty request of each signal.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::destination::{ProfilesOff, Receiver};
use super::encode::Signal;
use super::options::Options;
use tributary_sink_forward::client;
use tributary_sink_forward::probe::run;

/// Connects to the receiver of these options, with the handshake of TLS, and sends an empty request of each signal. Returns
/// what it has answered to each: that it takes it, or its words.
///
/// # Errors
/// There is no connection, or no answer in this time.
pub fn probe(
    options: &Options,
    connect_time: Duration,
    time: Duration,
) -> io::Result<Vec<(Signal, Result<(), String>)>> {
    run(time, async {
        let receiver = Receiver::new("check", options, ProfilesOff::default(), Arc::default())?;
        client::connect(&options.endpoint, options.version(), connect_time, &options.tls, &options.proxy).await?;
        let mut answers = Vec::new();
        for signal in Signal::ALL.into_iter().filter(|signal| options.sends(*signal)) {
            answers.push((signal, receiver.take_nothing(signal).await));
        }
        Ok(answers)
    })
}
