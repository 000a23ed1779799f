//! The exchange of a listener `nats`: a message is a request whose answer is its acknowledgement.

use std::sync::Arc;

use super::{Limits, NatsWork};
use crate::{Exchange, Head, HeadDecision, Now, Request};
use tributary_memory::MemoryBudget;

/// Decodes messages.
#[derive(Debug)]
pub struct NatsExchange {
    limits: Limits,
    memory: Arc<MemoryBudget>,
}

impl NatsExchange {
    /// With these limits; long lines take memory of `memory`.
    pub fn new(limits: Limits, memory: &Arc<MemoryBudget>) -> Self {
        NatsExchange { limits, memory: memory.clone() }
    }
}

impl Exchange for NatsExchange {
    type Work = NatsWork;

    fn admit(&self, _head: &Head, _now: Now) -> HeadDecision {
        HeadDecision::Take { max_body_bytes: self.limits.max_message_bytes, key: "max_message_bytes" }
    }

    fn work(&self, request: Request, memory: Option<&Arc<MemoryBudget>>, _now: Now) -> NatsWork {
        NatsWork::new(request, self.limits, memory.unwrap_or(&self.memory))
    }
}
