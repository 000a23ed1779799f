//! A new configuration for a running daemon: what has changed is replaced, everything else keeps running.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::config::{Config, ListenerConfig, ProcessLimits};
use tributary_pipeline::Sinks;
use tributary_select::Rules;
use tributary_transport::tls::TlsError;
use tributary_zico::registrations::Registrations;

use super::listeners::{BoundListener, ListenerHandle, Runtime};
use super::{Admin, Server, StartError, add_sink, open_admin, unless_in_use};

/// Pause before the next try to open a store that connections which end still use.
const STORE_RETRY: Duration = Duration::from_millis(50);

/// What a reload has done.
#[derive(Debug, Default)]
pub struct Reloaded {
    /// What was started, stopped or restarted, in words.
    pub changes: Vec<String>,
    /// What could not be started although it passed all checks. It does not run now.
    pub failures: Vec<StartError>,
    /// What does not follow the new configuration yet, in words: certificates that cannot be used, options that need a
    /// restart. The old ones stay in force.
    pub stale: Vec<String>,
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.changes.as_slice() {
            [] => f.write_str("nothing has changed"),
            changes => f.write_str(&changes.join("; ")),
        }
    }
}

impl Reloaded {
    /// Notes the result of reading the TLS files of `whose` again.
    fn reread(&mut self, whose: &str, result: Result<bool, TlsError>) {
        match result {
            Ok(false) => {}
            Ok(true) => self.changes.push(format!("{whose} has new certificates")),
            Err(why) => self.stale.push(format!("{whose} keeps its certificates: {why}")),
        }
    }
}

impl Server {
    /// Puts another configuration into force. Listeners that are the same keep their connections, sinks that are the same
    /// their files. A listener that is changed ends its connections and keeps its socket: a peer that connects meanwhile
    /// waits. TLS files are read again in any case, for new connections.
    ///
    /// While the daemon stops ([`Server::stop_token`]) it waits for nothing.
    ///
    /// # Errors
    /// A listener cannot be bound, or its files cannot be used; the old configuration stays in force.
    pub async fn reload(&mut self, config: &Config) -> Result<Reloaded, StartError> {
        let mut reloaded = Reloaded::default();
        // Everything that may fail comes first.
        let mut bound_listeners = Vec::new();
        let mut replaced_listeners = Vec::new();
        for listener in config.listeners.iter().filter(|listener| !self.runs(listener)) {
            let has_port = listener.listen.is_some_and(|listen| listen.port() != 0);
            let bound = |running: &&ListenerHandle| {
                running.config.listen == listener.listen && (has_port || running.config.name == listener.name)
            };
            let socket = self.listeners.iter().find(bound).and_then(ListenerHandle::socket);
            let replaced = self.listeners.iter().find(bound);
            let further: Vec<_> = self.listeners.iter().flat_map(|running| &running.further).collect();
            let opened = BoundListener::open(listener, socket, &further, &self.accounting, &self.runtime.decoding);
            let Some(mut bound_listener) = unless_in_use(listener, opened)? else { continue };
            if let Some(replaced) = replaced {
                replaced_listeners.push(replaced.config.name.clone());
                bound_listener.replace(replaced);
            }
            // Connections that end may still hold its old store.
            let is_held = self.listeners.iter().any(|running| running.shares_agents_with(listener));
            if !is_held {
                bound_listener.open_agents(listener, None, &self.runtime.decoding)?;
            }
            bound_listeners.push((bound_listener, listener, is_held));
        }

        let rules = super::rules(config)?;

        let old = std::mem::replace(&mut self.config, config.clone());
        let old_rules = std::mem::replace(&mut self.rules, rules);
        let grace = config.limits.shutdown_grace;
        self.runtime.grace = grace;
        // Before peers get the memory that it does not use any more.
        if let Some(view) = self.view.as_ref().filter(|_| old.view != config.view) {
            view.set_options(config.view.clone());
            reloaded.changes.push("view changed".to_owned());
        }
        self.runtime.memory.set_limit(config.bounds().left_of(config.memory_limit()));
        self.runtime.memory.set_address_limit(config.limits.memory_per_address);
        let without_threads = |limits: &ProcessLimits| ProcessLimits { threads: None, ..limits.clone() };
        if without_threads(&old.limits) != without_threads(&config.limits) {
            reloaded.changes.push("limits changed".to_owned());
        }
        if config.limits.threads() != self.threads {
            let (new, running) = (config.limits.threads(), self.threads);
            reloaded.stale.push(format!("limits.threads = {new} needs a restart: {running} threads run until then"));
        }
        // While sinks are replaced, old and new ones must reach the level.
        let durable = |listener| old.acknowledge(listener).min(config.acknowledge(listener));
        self.listeners.iter().for_each(|running| running.set_level(durable(&running.config)));
        self.reload_sinks(&old, &old_rules, &mut reloaded).await;

        // Before one listener stops what another one sees as switched on.
        let is_kept = |running: &&ListenerHandle| config.listeners.contains(&running.config);
        let kept_processes = self.listeners.iter().filter(is_kept).flat_map(ListenerHandle::processes);
        let new_processes = bound_listeners.iter().flat_map(|(bound_listener, ..)| bound_listener.processes());
        let successors = kept_processes.chain(new_processes);
        for ended in self.listeners.iter().filter(|running| !is_kept(running)) {
            ended.hand_over(successors.clone());
        }

        let mut kept = Vec::new();
        let mut stores = Vec::new();
        for running in std::mem::take(&mut self.listeners) {
            let name = running.config.name.clone();
            match config.listeners.iter().find(|listener| listener.name == name) {
                Some(same) if running.config == *same => {
                    running.set_level(config.acknowledge(same));
                    kept.push(running);
                }
                now => {
                    let verb = if now.is_some() { "restarted" } else { "stopped" };
                    reloaded.changes.push(format!("listener {name} {verb}"));
                    stores.extend(now.and_then(|now| running.agents_for(now)).map(|store| (name.clone(), store)));
                    let is_last = !replaced_listeners.contains(&name);
                    running.stopped_in_background(is_last, grace, &self.runtime).await;
                    self.runtime.directory.remove(&name);
                }
            }
        }
        for running in &kept {
            reloaded.reread(&format!("listener {}", running.config.name), running.reread_tls());
        }
        for (mut bound_listener, listener, is_held) in bound_listeners {
            let name = &listener.name;
            if !old.listeners.iter().any(|old| old.name == *name) {
                reloaded.changes.push(format!("listener {name} started"));
            }
            if is_held {
                let store = stores.iter().find(|(of, _)| of == name).map(|(_, store)| store.clone());
                if let Err(failure) = take_over_agents(&mut bound_listener, listener, store, grace, &self.runtime).await
                {
                    reloaded.failures.push(failure);
                    continue;
                }
            }
            bound_listener.enter(&self.accounting);
            kept.push(self.runtime.serve(bound_listener, listener, config.acknowledge(listener)));
        }
        let place = |name: &str| config.listeners.iter().position(|listener| listener.name == name);
        kept.sort_by_key(|running| place(&running.config.name));
        self.listeners = kept;
        self.note_addresses();
        self.note_layout();
        let is_switched = old.has_view() != config.has_view();
        if is_switched && self.view.is_some() != config.has_view() {
            let new = if config.has_view() { "on" } else { "off" };
            reloaded.stale.push(format!("to switch the view {new} needs a restart"));
        }

        self.workers.try_again();
        self.health.set_stall_time(config.admin.stall_time);
        if old.admin == config.admin {
            for tls in self.admin.iter().filter_map(|admin| admin.tls.as_ref()) {
                reloaded.reread("the admin endpoint", tls.reread());
            }
        } else {
            for Admin { serving, .. } in std::mem::take(&mut self.admin) {
                serving.finish().await;
            }
            reloaded.changes.push("admin endpoint restarted".to_owned());
            match open_admin(&config.admin).await {
                Ok(admin) => self.serve_admin(admin),
                Err(failure) => reloaded.failures.push(failure),
            }
        }
        self.note_certificates();
        Ok(reloaded)
    }

    /// Whether a listener with exactly this configuration runs.
    fn runs(&self, listener: &ListenerConfig) -> bool {
        self.listeners.iter().any(|running| running.config == *listener)
    }

    async fn reload_sinks(&mut self, old: &Config, old_rules: &[Option<Arc<Rules>>], reloaded: &mut Reloaded) {
        // With its rules: the key of hashes may be another one.
        let old: Vec<_> = old.sinks.iter().zip(old_rules).collect();
        let new: Vec<_> = self.config.sinks.iter().zip(&self.rules).collect();
        let removed: Vec<_> =
            old.iter().filter(|sink| !new.contains(sink)).map(|(sink, _)| sink.name.clone()).collect();
        let added: Vec<_> = new.into_iter().filter(|sink| !old.contains(sink)).collect();
        if removed.is_empty() && added.is_empty() {
            return;
        }
        for (sink, _) in &added {
            let verb = if removed.contains(&sink.name) { "restarted" } else { "started" };
            reloaded.changes.push(format!("sink {} {verb}", sink.name));
        }
        for name in removed.iter().filter(|name| !added.iter().any(|(sink, _)| sink.name == **name)) {
            reloaded.changes.push(format!("sink {name} stopped"));
        }
        let grace = self.config.limits.shutdown_grace;
        let add = |sinks: &mut Sinks| {
            added.iter().for_each(|(sink, rules)| add_sink(sinks, sink, (*rules).clone()));
        };
        self.workers.replace(&removed, grace, add).await;
        self.accounting.set_sinks(self.workers.counters());
    }
}

/// Opens the store of a listener's agents: `known`, or one that connections which end may use for as long as `grace`. Tries
/// once when `stop` is cancelled.
async fn take_over_agents(
    bound_listener: &mut BoundListener,
    listener: &ListenerConfig,
    known: Option<Arc<dyn Registrations>>,
    grace: Duration,
    Runtime { decoding, stop, .. }: &Runtime,
) -> Result<(), StartError> {
    let deadline = Instant::now() + grace;
    loop {
        let opened = bound_listener.open_agents(listener, known.clone(), decoding);
        if opened.is_ok() || Instant::now() >= deadline || stop.is_cancelled() {
            return opened;
        }
        let _ = stop.run_until_cancelled(sleep(STORE_RETRY)).await;
    }
}
