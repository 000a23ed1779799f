//! The exchange of a listener `nats`: a message is a request whose answer is its acknowledgement.

use std::sync::Arc;

use super::{MessageLimits, NatsWork};
use crate::{Exchange, HeadDecision, Now, Request, RequestHead};
use tributary_memory::MemoryBudget;

/// Decodes messages.
#[derive(Debug)]
pub struct NatsExchange {
    limits: MessageLimits,
    memory: Arc<MemoryBudget>,
}

impl NatsExchange {
    /// With these limits; long lines take memory of `memory`.
    pub fn new(limits: MessageLimits, memory: &Arc<MemoryBudget>) -> Self {
        NatsExchange { limits, memory: memory.clone() }
    }
}

impl Exchange for NatsExchange {
    type Work = NatsWork;

    fn admit(&self, _head: &RequestHead, _now: Now) -> HeadDecision {
        HeadDecision::Take { max_body_bytes: self.limits.max_message_bytes, key: "max_message_bytes" }
    }

    fn work(&self, request: Request, memory: Option<&Arc<MemoryBudget>>, _now: Now) -> NatsWork {
        NatsWork::new(request, self.limits, memory.unwrap_or(&self.memory))
    }
}
