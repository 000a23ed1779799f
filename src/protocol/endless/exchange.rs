//! Decides about request heads: which requests are uploads, and the answers to all others (rules 2 to 7, 24 and 25).

use std::sync::Arc;

use tributary_event::Reason;
use tributary_memory::{MemoryBudget, MemoryLease};
use tributary_protocol::{Exchange, HeadDecision, Now, Request, RequestHead, Response};

use super::options::Options;
use super::shared::SharedExchange;
use super::shared_deliveries::SharedDeliveries;
use super::target::{Encoding, Target};
use super::wire::UploadVersion;
use super::work::EndlessWork;

/// The protocol of one `endless` listener.
#[derive(Debug)]
pub struct EndlessExchange {
    shared: Arc<SharedExchange>,
}

impl EndlessExchange {
    /// A listener without history.
    pub fn new(options: Options, budget: &Arc<MemoryBudget>) -> Self {
        EndlessExchange { shared: Arc::new(SharedExchange::new(options, None, budget)) }
    }

    /// The same listener, which also leaves out what other daemons have delivered.
    #[must_use]
    pub fn with_shared_deliveries(self, shared_deliveries: Arc<dyn SharedDeliveries>) -> Self {
        let SharedExchange { options, budget, .. } = &*self.shared;
        EndlessExchange { shared: Arc::new(SharedExchange::new(options.clone(), Some(shared_deliveries), budget)) }
    }
}

impl Exchange for EndlessExchange {
    type Work = EndlessWork;

    fn admit(&self, head: &RequestHead, _now: Now) -> HeadDecision {
        let answer = |response| HeadDecision::Answer(response, Reason::Unsupported);
        match head.method.as_str() {
            // Health checks, and agents that followed a redirect (rule 25).
            "GET" | "HEAD" => return answer(Response::text(200, "tributary receives Endless OS metrics here")),
            "PUT" => {}
            method => return answer(Response::not_allowed(method, "PUT, GET, HEAD")),
        }
        let target = match Target::read(head.path(), &self.shared.options.path_prefix) {
            Ok(target) => target,
            Err(sentence) => return answer(Response::text(404, sentence)),
        };
        // Versions 0 and 1 are answered 200 whatever they contain (rule 4): a refusal would block the agent's queue.
        if target.version >= UploadVersion::V2 {
            if target.hash.is_none() {
                return answer(Response::text(404, "the path must end with a SHA-512 in 128 hexadecimal digits"));
            }
            if let Encoding::Unknown = Encoding::read(head) {
                return answer(Response::text(415, "the body must be plain or gzip"));
            }
        }
        HeadDecision::Take { max_body_bytes: self.shared.options.max_body_bytes, key: "max_body_bytes" }
    }

    fn work(&self, request: Request, memory: Option<&Arc<MemoryBudget>>, _now: Now) -> EndlessWork {
        let target = Target::read(request.head.path(), &self.shared.options.path_prefix);
        let encoding = Encoding::read(&request.head);
        // Only admitted requests get here, and they have a target.
        let target = target.unwrap_or(Target { version: UploadVersion::V3, hash: None });
        let lease = memory.unwrap_or(&self.shared.budget).passing(MemoryLease::FLOOR);
        EndlessWork::new(request, target, encoding, lease, self.shared.clone())
    }
}
