//! `tributary heap`: a table of the heap of a Ruby process, or of what two dumps differ in.

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::time::Duration;

use super::super::signals::StopSignals;
use super::super::{CommandLineError, block_on, duration, printed, say};
use super::daemon::{AgentArguments, SeenAgent};
use super::feed::{Feed, Followed};
use super::process::{self, ConnectedProcess};
use super::{PATIENCE, follow_for};
use tributary_profile::ProfileItem;
use tributary_profile::compare::Comparison;
use tributary_profile::heap::{Dumps, Heap, Wanted};
use tributary_protocol::Protocol;
use tributary_rbkit::{AgentOptions, RbkitCommand};

/// Show the heap of a running Ruby process, by class and site
///
/// AGENT is an agent of a running daemon; `heap ruby` connects to the process itself. A heap dump stops the program while it
/// is made. Sites are known only of objects that were allocated while the memory profile was on.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  tributary heap ruby 127.0.0.1:5555
  tributary heap ruby:0 --compare --after 1m   what has been added within a minute
  tributary agents                             the ids of the agents of the daemon"
)]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    agent: AgentArguments,
    #[command(flatten)]
    wanted: Comparing,
    #[command(subcommand)]
    process: Option<Target>,
}

#[derive(Debug, clap::Subcommand)]
enum Target {
    /// Dump the heap of a Ruby process directly, without a daemon
    #[command(after_help = "Example:\n  tributary heap ruby 127.0.0.1:5555 --compare")]
    Ruby {
        #[command(flatten)]
        process: process::Arguments,
        #[command(flatten)]
        wanted: Comparing,
    },
}

#[derive(Debug, clap::Args)]
struct Comparing {
    /// Take two dumps, and show the objects that only the second one has
    #[arg(long)]
    compare: bool,
    /// Time between the two dumps; Ctrl-C ends it early
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration, requires = "compare")]
    after: Duration,
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    let heaps = match &arguments.process {
        Some(Target::Ruby { process, wanted }) => block_on(of_process(process, wanted))??,
        None => block_on(async { of_agent(&arguments.agent.find().await?, &arguments.wanted).await })??,
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let written = match &heaps[..] {
        [before, after] => Comparison::new(before, after).write(&mut out),
        heaps => heaps.iter().try_for_each(|heap| heap.write(&mut out)),
    };
    printed(written.and_then(|()| out.flush()))?;
    if let [heap] = &heaps[..] {
        say(format_args!("{}", heap.name()));
    }
    Ok(())
}

/// Where commands are sent.
#[derive(Clone, Copy)]
enum Peer<'a> {
    Agent(&'a SeenAgent),
    Process(&'a ConnectedProcess),
}

impl Peer<'_> {
    fn name(self) -> String {
        match self {
            Peer::Agent(agent) => agent.name(),
            Peer::Process(process) => process.name.clone(),
        }
    }

    async fn command(self, command: RbkitCommand) -> Result<(), CommandLineError> {
        match self {
            Peer::Agent(agent) => agent.command(command).await,
            Peer::Process(process) => process.command(command).await,
        }
    }
}

/// Takes the dumps of a process that the command connects to itself.
async fn of_process(arguments: &process::Arguments, wanted: &Comparing) -> Result<Vec<Heap>, CommandLineError> {
    let mut signals = StopSignals::new()?;
    let (process, mut feed) = ConnectedProcess::connect(arguments, AgentOptions::default(), &mut signals).await?;
    let heaps = dumps(&mut feed, Peer::Process(&process), wanted, &mut signals).await;
    feed.progress.end();
    process.end(&mut feed, &mut signals, &mut |_| ControlFlow::Continue(())).await;
    feed.report_losses();
    heaps
}

/// Takes the dumps of an agent of a running daemon.
async fn of_agent(agent: &SeenAgent, wanted: &Comparing) -> Result<Vec<Heap>, CommandLineError> {
    if agent.protocol != Protocol::Rbkit {
        let protocol = agent.protocol;
        return Err(CommandLineError::Failed(format!("{protocol} has no heap dumps; only agents of rbkit have")));
    }
    let mut signals = StopSignals::new()?;
    let mut feed = agent.feed(&["sample", "log"]).await?;
    let heaps = dumps(&mut feed, Peer::Agent(agent), wanted, &mut signals).await;
    feed.report_losses();
    heaps
}

/// Takes one dump, or two of them.
async fn dumps(
    feed: &mut Feed,
    peer: Peer<'_>,
    wanted: &Comparing,
    signals: &mut StopSignals,
) -> Result<Vec<Heap>, CommandLineError> {
    let mut heaps = vec![dump(feed, peer, wanted.compare, signals).await?];
    if wanted.compare {
        feed.progress.step("waiting before the second dump", Some(wanted.after));
        follow_for(feed, wanted.after, signals, &mut |_| ControlFlow::Continue(())).await;
        heaps.push(dump(feed, peer, true, signals).await?);
    }
    Ok(heaps)
}

/// Requests a dump, and takes it as far as it comes.
async fn dump(
    feed: &mut Feed,
    peer: Peer<'_>,
    keeps_objects: bool,
    signals: &mut StopSignals,
) -> Result<Heap, CommandLineError> {
    let mut dumps = Dumps::new(Wanted::Last, keeps_objects);
    let take = &mut |item: ProfileItem<'_>| {
        match item {
            ProfileItem::Object(object) => dumps.object(&object),
            ProfileItem::Sample(sample) => dumps.sum(&sample),
            ProfileItem::DumpEnd(dump) => {
                dumps.end(&dump);
                return ControlFlow::Break(());
            }
            _ => {}
        }
        ControlFlow::Continue(())
    };
    feed.progress.step(&format!("dumping the heap of {}", peer.name()), None);
    let request = async {
        tokio::select! {
            requested = peer.command(RbkitCommand::ObjectspaceSnapshot) => Some(requested),
            () = signals.next() => None,
        }
    };
    match feed.follow(take, request).await {
        Followed::Ready(Some(requested)) => {
            requested?;
            // The dump follows its reply. A large one takes long; silence shows that it does not come.
            loop {
                let before = feed.arrived();
                let followed = follow_for(feed, PATIENCE, signals, take).await;
                if followed != Followed::Ready(false) || feed.arrived() == before {
                    break;
                }
            }
        }
        Followed::Ready(None) | Followed::Enough | Followed::Closed => {}
    }
    let (heap, _) = dumps.finish().map_err(|_| CommandLineError::Failed("no heap dump has arrived".to_owned()))?;
    Ok(heap)
}
