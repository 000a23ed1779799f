//! The resources of the services whose spans a connection sends: what the process sent of itself, with the span's
//! `service.name`. Built once per service, not per span.

use std::sync::Arc;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use tributary_event::{BatchBuilder, BatchResource, InternedResource, Resource};

use super::strings::StringSlot;

/// Services that are kept. When there are more, all are forgotten, and built again when needed.
const MAX_SERVICES: usize = 512;
/// The same for their memory.
const MAX_BYTES: usize = 256 << 10;
/// Memory of a service besides its name and its resource.
const SERVICE_BYTES: usize = 256;

/// Services that are found by comparing names, because a process has few.
const FEW: usize = 8;

/// The services of one connection.
#[derive(Debug, Default)]
pub(super) struct Services {
    /// What the process sent of itself.
    agent: Arc<Resource>,
    all: Vec<Service>,
    /// Where those after the first [`FEW`] are in `all`.
    places: HashMap<Box<str>, usize, RandomState>,
    bytes: usize,
}

#[derive(Debug)]
struct Service {
    name: Box<str>,
    /// Where the name was in the table of strings when it was last looked up.
    slot: StringSlot,
    resource: Arc<Resource>,
    memo: InternedResource,
}

impl Services {
    /// Memory of the resources.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Forgets all services. `false`: there is none.
    pub(super) fn clear(&mut self) -> bool {
        let had_any = !self.all.is_empty();
        (self.all, self.places, self.bytes) = (Vec::new(), HashMap::default(), 0);
        had_any
    }

    /// The resource of the service `name`, as a resource of the current batch. `slot`: where the name is in the table of strings.
    #[inline]
    pub(super) fn resource(&mut self, slot: StringSlot, name: &str, batch: &mut BatchBuilder) -> BatchResource {
        let is_same_agent = Arc::ptr_eq(&self.agent, batch.sent_resource());
        let mut few = self.all.iter().take(FEW);
        let known = few.position(|service| service.slot == slot && *service.name == *name).filter(|_| is_same_agent);
        let place = known.unwrap_or_else(|| self.find(slot, name, batch));
        let Service { resource, memo, .. } = &mut self.all[place];
        batch.intern_resource(memo, resource)
    }

    #[cold]
    fn find(&mut self, slot: StringSlot, name: &str, batch: &BatchBuilder) -> usize {
        if !Arc::ptr_eq(&self.agent, batch.sent_resource()) {
            self.clear();
            self.agent = batch.sent_resource().clone();
        }
        if let Some(place) = self.all.iter().take(FEW).position(|service| *service.name == *name) {
            self.all[place].slot = slot;
            return place;
        }
        if let Some(place) = self.places.get(name) {
            return *place;
        }
        let resource = Arc::new(Resource::of_service(&self.agent, name));
        // With the identity of the listener the attributes are there twice.
        let bytes = SERVICE_BYTES + 2 * name.len() + 2 * resource.memory_bytes();
        if self.bytes + bytes > MAX_BYTES || self.all.len() >= MAX_SERVICES {
            self.clear();
        }
        self.bytes += bytes;
        let place = self.all.len();
        if place >= FEW {
            self.places.insert(name.into(), place);
        }
        self.all.push(Service { name: name.into(), slot, resource, memo: InternedResource::default() });
        place
    }
}
