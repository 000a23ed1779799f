//! The latest resources of a listener: what the same sender says in another request is the same resource. So it is rendered, merged and
//! looked up once, and takes its memory once where events are kept.

use std::hash::{BuildHasher as _, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::{Resource, ResourceValue};

/// The most memory of all of them, and of one that is remembered.
const MAX_BYTES: usize = 128 << 10;
const MAX_RESOURCE_BYTES: usize = 8 << 10;
/// Memory of a resource besides its attributes.
const RESOURCE_BYTES: usize = size_of::<Resource>() + 64;

/// The latest resources.
#[derive(Debug, Default)]
pub struct RecentResources {
    hasher: RandomState,
    known: Mutex<KnownResources>,
}

#[derive(Debug, Default)]
struct KnownResources {
    /// By the hash of their attributes.
    all: HashMap<u64, Arc<Resource>, RandomState>,
    bytes: usize,
}

impl RecentResources {
    /// The resource, or an equal one that came lately.
    pub fn share(&self, resource: Resource) -> Arc<Resource> {
        let hash = self.hash_of(&resource);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.all.get(&hash)
            && known.is_same(&resource)
        {
            return known.clone();
        }
        let bytes = resource.memory_bytes() + RESOURCE_BYTES;
        let resource = Arc::new(resource);
        if bytes <= MAX_RESOURCE_BYTES {
            if known.bytes + bytes > MAX_BYTES {
                *known = KnownResources::default();
            }
            known.bytes += bytes;
            known.all.insert(hash, resource.clone());
        }
        resource
    }

    fn hash_of(&self, resource: &Resource) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        // A service can have the attributes of its agent, and alternate with it.
        resource.is_of_service().hash(&mut hasher);
        for (key, value) in resource.attributes() {
            key.hash(&mut hasher);
            match value {
                ResourceValue::Bool(value) => value.hash(&mut hasher),
                ResourceValue::I64(value) => value.hash(&mut hasher),
                ResourceValue::U64(value) => value.hash(&mut hasher),
                ResourceValue::F64(value) => value.to_bits().hash(&mut hasher),
                ResourceValue::Text(text) => text.hash(&mut hasher),
            }
        }
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(service: &str) -> Resource {
        Resource::new([
            ("service.name".to_owned(), ResourceValue::from(service)),
            ("process.pid".to_owned(), ResourceValue::U64(7)),
        ])
    }

    #[test]
    fn equal_resources_are_shared_and_memory_is_bounded() {
        let recent = RecentResources::default();
        let first = recent.share(resource("shop"));
        assert!(Arc::ptr_eq(&first, &recent.share(resource("shop"))));
        assert!(!Arc::ptr_eq(&first, &recent.share(resource("cart"))));
        // Of another agent, or of none, is another resource.
        let of_service = |agent: &Arc<Resource>| recent.share(Resource::of_service(agent, "shop"));
        let (one, other) = (Arc::new(resource("shop")), Arc::new(resource("b")));
        let of_one = of_service(&one);
        assert!(Arc::ptr_eq(&first, &recent.share(resource("shop"))) && Arc::ptr_eq(&of_one, &of_service(&one)));
        assert!(!Arc::ptr_eq(&of_one, &of_service(&other)));
        for number in 0..10_000 {
            recent.share(resource(&format!("service {number}")));
            assert!(recent.known.lock().unwrap().bytes <= MAX_BYTES);
        }
        let large = || Resource::new([("a".to_owned(), ResourceValue::Text("x".repeat(MAX_RESOURCE_BYTES)))]);
        assert!(!Arc::ptr_eq(&recent.share(large()), &recent.share(large())));
    }
}
