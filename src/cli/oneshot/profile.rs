//! `tributary profile`: a profile of a process that runs, of the next seconds.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::super::profile::{Picture, Samples, StackForm};
use super::super::signals::StopSignals;
use super::super::{CommandLineError, block_on, duration, printed, say};
use super::daemon::{AgentArguments, SeenAgent};
use super::feed::{Feed, Followed};
use super::process::{self, ConnectedProcess};
use super::{PATIENCE, follow_for};
use tributary_profile::ProfileItem;
use tributary_profile::collected::Collected;
use tributary_protocol::Protocol;
use tributary_rbkit::{self as rbkit, RbkitCommand};

/// How long an agent may take to send the last samples after its profile was switched off.
const FLUSH_TIME: Duration = Duration::from_millis(1_200);
/// After the first events of a listener that sums up calls, the rest of the interval follows within this time.
const BURST_TIME: Duration = Duration::from_millis(500);
/// If nothing has arrived, the first events are awaited for this time at least.
const EXTRA_TIME: Duration = Duration::from_secs(15);
/// The same of profilers of Datadog, which upload their profiles once a minute.
const UPLOAD_TIME: Duration = Duration::from_secs(75);

/// Profile a running process for some seconds
///
/// AGENT is an agent of a running daemon: of a Ruby process the CPU profile is switched on for this time, and off again; of
/// other agents the calls or spans of this time are summed up. `profile ruby` connects to a Ruby process itself, without a
/// daemon. The profile is written to stdout.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  tributary profile ruby 127.0.0.1:5555 --for 10s > cpu.svg
  tributary profile ruby 127.0.0.1:5555 --as top
  tributary profile java:1 --for 30s --as pprof > java.pb.gz
  tributary agents                             the ids of the agents of the daemon"
)]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    agent: AgentArguments,
    #[command(flatten)]
    wanted: Wanted,
    #[command(subcommand)]
    process: Option<Target>,
}

#[derive(Debug, clap::Subcommand)]
enum Target {
    /// Profile a Ruby process directly, without a daemon
    ///
    /// The program needs the gem rbkit from its master branch, and must have called `Rbkit.start_server`.
    #[command(after_help = "\
Examples:
  tributary profile ruby 127.0.0.1:5555 > cpu.svg
  tributary profile ruby web-2:5555 --request web-2:7000 --clock wall --for 30s --as tree")]
    Ruby {
        #[command(flatten)]
        process: process::Arguments,
        /// The clock of the samples [default: that of the process]
        #[arg(long, value_name = "CLOCK")]
        clock: Option<ClockName>,
        #[command(flatten)]
        wanted: Wanted,
    },
}

/// A clock that samples are taken by.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ClockName {
    /// The time that the process computes
    Cpu,
    /// All time, also that in which it waits
    Wall,
}

#[derive(Debug, clap::Args)]
struct Wanted {
    /// Duration; Ctrl-C ends it early and shows what there is
    #[arg(long = "for", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    time: Duration,
    /// The form of the profile [default: tree with --function, top on a terminal, otherwise flamegraph]
    #[arg(long = "as", value_name = "FORM")]
    form: Option<StackForm>,
    /// The quantity: cpu, wall, calls, allocations, heap-bytes, heap-objects, or a type of samples of a profiler, e.g. cpu-time
    /// [default: cpu for Ruby, wall or the first type for others]
    #[arg(long, value_name = "SAMPLES")]
    sample: Option<Samples>,
    /// With --as tree, which is its default form: only this function, by its name or a part of it, below its callers and above
    /// its callees
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    let wanted = match &arguments.process {
        Some(Target::Ruby { wanted, .. }) => wanted,
        None => &arguments.wanted,
    };
    let usual = match &wanted.function {
        Some(_) => StackForm::Tree,
        None if io::stdout().is_terminal() => StackForm::Top,
        None => StackForm::Flamegraph,
    };
    let (form, function) = (wanted.form.unwrap_or(usual), wanted.function.as_deref());
    let picture = Picture { form, sample: wanted.sample.clone(), agent: None, function };
    picture.check()?;
    let new = Collected::with_times(picture.form.has_times());
    let (mut collected, is_ruby) = match &arguments.process {
        Some(Target::Ruby { process, clock, wanted }) => {
            (block_on(of_process(process, *clock, wanted.time, new))??, true)
        }
        None => block_on(async {
            let agent = arguments.agent.find().await?;
            let is_ruby = agent.protocol == Protocol::Rbkit;
            Ok::<_, CommandLineError>((of_agent(&agent, wanted.time, new).await?, is_ruby))
        })??,
    };
    collected.finish();
    let picture = Picture { sample: picture.sample.clone().or(is_ruby.then(Samples::cpu)), ..picture };
    if collected.sources().is_empty() {
        return Err(CommandLineError::Failed(nothing(is_ruby).to_owned()));
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let written = picture.write(&collected, &mut out)?;
    printed(written.and_then(|()| out.flush()))
}

/// Why there may be nothing.
fn nothing(is_ruby: bool) -> &'static str {
    if is_ruby {
        "there were no samples: by the clock `cpu` a process that only waits has none (`profile ruby` has --clock wall)"
    } else {
        "there were no calls and no spans; a listener that sums up calls has some only at the end of each profile_interval"
    }
}

/// Collects the profile of a process that the command connects to itself.
async fn of_process(
    arguments: &process::Arguments,
    clock: Option<ClockName>,
    time: Duration,
    mut collected: Collected,
) -> Result<Collected, CommandLineError> {
    let mut signals = StopSignals::new()?;
    let clock = clock.map(|clock| match clock {
        ClockName::Cpu => rbkit::Clock::Cpu,
        ClockName::Wall => rbkit::Clock::Wall,
    });
    let options = rbkit::AgentOptions { enable: vec![rbkit::ProfileKind::Cpu], clock, ..Default::default() };
    let (process, mut feed) = ConnectedProcess::connect(arguments, options, &mut signals).await?;
    let take = &mut |item: ProfileItem<'_>| {
        collected.add(&item);
        ControlFlow::Continue(())
    };
    feed.progress.step(&format!("profiling {}", process.name), Some(time));
    let is_on = timeout(PATIENCE, process.until(|status| status.cpu_profile == Some(true) || !status.has_cpu_profile));
    let is_on = async {
        tokio::select! {
            status = is_on => Some(status),
            () = signals.next() => None,
        }
    };
    let refusal = match feed.follow(take, is_on).await {
        Followed::Ready(Some(Ok(status))) if !status.has_cpu_profile => Some(
            "the process has release 0.1.10 of rbkit, which has no CPU profile; `tributary heap ruby` works with it",
        ),
        Followed::Ready(Some(Err(_))) => Some("the process has not switched its CPU profile on"),
        Followed::Ready(Some(Ok(_))) => {
            follow_for(&mut feed, time, &mut signals, take).await;
            None
        }
        Followed::Ready(None) | Followed::Enough | Followed::Closed => None,
    };
    feed.progress.step("switching the profile off", None);
    process.end(&mut feed, &mut signals, take).await;
    feed.report_losses();
    match refusal {
        Some(refusal) => Err(CommandLineError::Failed(refusal.to_owned())),
        None => Ok(collected),
    }
}

/// Collects the profile of an agent of a running daemon.
async fn of_agent(agent: &SeenAgent, time: Duration, collected: Collected) -> Result<Collected, CommandLineError> {
    match agent.protocol {
        Protocol::Rbkit => of_ruby_agent(agent, time, collected).await,
        Protocol::Endless => Err(CommandLineError::Failed("endless has no profiles".to_owned())),
        Protocol::Nats => {
            Err(CommandLineError::Failed("collectors have no profiles; ask those of their agents".to_owned()))
        }
        Protocol::Bytefrog => of_calls(agent, agent.feed(&["sample", "span", "log"]).await?, time, collected).await,
        Protocol::Datadog | Protocol::DatadogAgent | Protocol::Zico | Protocol::Otlp => {
            of_calls(agent, agent.feed(&["sample", "span"]).await?, time, collected).await
        }
    }
}

/// Sums up the calls and spans that arrive.
async fn of_calls(
    agent: &SeenAgent,
    mut feed: Feed,
    time: Duration,
    mut collected: Collected,
) -> Result<Collected, CommandLineError> {
    let mut signals = StopSignals::new()?;
    let take = &mut |item: ProfileItem<'_>| {
        collected.add(&item);
        ControlFlow::Continue(())
    };
    feed.progress.step(&format!("collecting calls of {}", agent.name()), Some(time));
    let mut ended = follow_for(&mut feed, time, &mut signals, take).await;
    if ended == Followed::Ready(false) && feed.arrived() == 0 {
        let is_uploaded = agent.protocol == Protocol::DatadogAgent;
        let extra = time.max(if is_uploaded { UPLOAD_TIME } else { EXTRA_TIME });
        feed.progress.step("nothing yet; waiting for the first calls", Some(extra));
        let mut is_first = true;
        let take = &mut |item: ProfileItem<'_>| {
            collected.add(&item);
            if std::mem::take(&mut is_first) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        ended = follow_for(&mut feed, extra, &mut signals, take).await;
        if ended == Followed::Enough {
            ended = follow_for(&mut feed, BURST_TIME, &mut signals, take).await;
        }
    }
    feed.report_losses();
    if ended == Followed::Closed {
        say("the daemon has ended");
    }
    Ok(collected)
}

/// Switches the CPU profile of a Ruby process on, collects its samples, and switches it off. A profile that was on stays on.
async fn of_ruby_agent(
    agent: &SeenAgent,
    time: Duration,
    mut collected: Collected,
) -> Result<Collected, CommandLineError> {
    let mut signals = StopSignals::new()?;
    let mut feed = agent.feed(&["sample"]).await?;
    let take = &mut |item: ProfileItem<'_>| {
        collected.add(&item);
        ControlFlow::Continue(())
    };
    let was_on = agent.is("cpu_profile") == Some(true);
    feed.progress.step(&format!("profiling {}", agent.name()), Some(time));
    let started = match was_on {
        true => Followed::Ready(Some(Ok(()))),
        false => {
            let start = async {
                tokio::select! {
                    started = agent.command(RbkitCommand::StartCpuProfiling) => Some(started),
                    () = signals.next() => None,
                }
            };
            feed.follow(take, start).await
        }
    };
    let (mut is_closed, mut failure) = (false, None);
    match started {
        Followed::Ready(Some(Ok(()))) => {
            is_closed = follow_for(&mut feed, time, &mut signals, take).await == Followed::Closed;
        }
        Followed::Ready(Some(Err(error))) => failure = Some(error),
        Followed::Ready(None) | Followed::Enough => {}
        Followed::Closed => is_closed = true,
    }
    // Also after an error: the process may have received the command all the same.
    if !was_on && !is_closed {
        feed.progress.step("switching the profile off", None);
        let stop = async {
            tokio::select! {
                stopped = timeout(PATIENCE, agent.command(RbkitCommand::StopCpuProfiling)) => matches!(stopped, Ok(Ok(()))),
                () = signals.next() => false,
            }
        };
        match feed.follow(take, stop).await {
            Followed::Ready(true) => {}
            _ if failure.is_some() => {}
            _ => say(format_args!(
                "the profile may still be on; `tributary agents tell {} stop_cpu_profiling` switches it off",
                agent.id()
            )),
        }
    }
    if failure.is_none() && !is_closed {
        feed.follow(take, sleep(FLUSH_TIME)).await;
    }
    feed.report_losses();
    if is_closed {
        say("the daemon has ended; it switches off only what it has switched on itself");
    }
    failure.map_or(Ok(collected), Err)
}
