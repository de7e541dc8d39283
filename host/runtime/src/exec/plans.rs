//! Plans of regions whose dimensions are known only at run time. A model caches a bounded number of plans; a backend is
//! notified of each plan that is released.
//!
//! A plan in use is never released: a run holds a reference, and dropping the last reference releases the plan.
//! Different dimensions may share a plan number (a backend without plans returns 0 for all dimensions), so users are
//! counted per plan number.

use super::lock::lock;
use super::lru_cache::{Dims, LruCache};
use super::region::{Prepared, Region};
use super::signature::Signature;
use byoc_ir::diag::Diagnostic;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Maximum number of plans of a model, unless it has more regions: regions run one after the other, so with fewer plans
/// than regions every run would evict and recreate every plan.
const MAX_PLANS: usize = 64;

/// Maximum total size of the plans of a model in bytes. The newest plan is retained even if it exceeds the limit by
/// itself.
const MAX_BYTES: usize = 256 << 20;

/// Plans of a model, by region and dimensions; `None` if the backend refuses the dimensions.
type PlanCache = Mutex<LruCache<(u32, Dims), Option<Arc<Plan>>>>;

/// Plan that is released when dropped.
pub(super) struct Plan {
    prepared: Prepared,
    owner: Arc<Owner>,
}

impl std::ops::Deref for Plan {
    type Target = Prepared;

    fn deref(&self) -> &Prepared {
        &self.prepared
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        self.owner.remove_user(self.prepared.plan);
    }
}

/// Plans of a region.
pub(super) struct RegionPlans {
    index: u32,
    owner: Arc<Owner>,
    cache: Arc<PlanCache>,
}

/// Region that owns the plans, with the number of users of each plan.
struct Owner {
    region: Arc<dyn Region>,
    users: Mutex<Users>,
}

#[derive(Default)]
struct Users {
    /// Number of users by plan number.
    counts: BTreeMap<u64, usize>,
    /// Plans without users. They are released only when no `prepare` is in progress, because `prepare` may return the
    /// number of an unused plan.
    unused: Vec<u64>,
    /// Number of calls to `prepare` in progress.
    preparing: usize,
}

impl RegionPlans {
    /// Creates the plan bookkeeping for each region that a backend runs; no plan is created yet.
    pub fn of(regions: &[Option<Arc<dyn Region>>]) -> Vec<Option<Arc<RegionPlans>>> {
        let cache = Arc::new(Mutex::new(LruCache::new(MAX_PLANS.max(regions.len()), MAX_BYTES)));
        let plans = |(index, region): (usize, &Option<Arc<dyn Region>>)| {
            let owner = Owner { region: region.clone()?, users: Mutex::default() };
            Some(Arc::new(RegionPlans { index: index as u32, owner: Arc::new(owner), cache: cache.clone() }))
        };
        regions.iter().enumerate().map(plans).collect()
    }

    /// Returns the plan for dimensions that are known before the run. The plan is never released while the model lives.
    ///
    /// # Errors
    /// If the backend refuses the dimensions.
    pub fn fixed_plan(&self, inputs: &[&[usize]]) -> Result<Prepared, Diagnostic> {
        self.owner.prepare(inputs)
    }

    /// Removes all plans of the model that no run uses. They are created again when they are needed.
    pub fn clear(&self) {
        let removed_plans = lock(&self.cache).clear();
        drop(removed_plans);
    }

    /// Returns the plan for the given input dimensions, from the cache or newly created; `None` if the backend refuses
    /// the dimensions, or prepares outputs that contradict the signature of the region.
    pub fn get(&self, inputs: &[&[usize]], signature: &Signature) -> Option<Arc<Plan>> {
        let key = (self.index, inputs.iter().map(|&dims| dims.into()).collect::<Dims>());
        if let Some(cache) = lock(&self.cache).get(&key) {
            return cache;
        }
        let prepare_result = self.owner.prepare(inputs).map_err(|error| error.to_string());
        let plan =
            prepare_result.map(|prepare_result| Arc::new(Plan { prepared: prepare_result, owner: self.owner.clone() }));
        let plan_result = match plan.and_then(|plan| signature.check_prepared(&plan).map(|()| plan)) {
            Ok(plan) => Some(plan),
            Err(reason) => {
                tracing::warn!("region {} runs on the host for input dimensions {inputs:?}: {reason}", self.index);
                None
            }
        };
        let bytes = plan_result.as_ref().map_or(0, |plan| plan.bytes);
        let evicted_plans = lock(&self.cache).insert(key, plan_result.clone(), bytes);
        // The evicted plans are dropped only after the lock is released, because the drop of the last reference to a
        // plan calls the backend.
        drop(evicted_plans);
        plan_result
    }
}

impl Owner {
    /// Calls the backend's `prepare`, and adds a user to the plan.
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared, Diagnostic> {
        lock(&self.users).preparing += 1;
        // The lock is not held during the call: the backend may use the host's threads, and this thread may start
        // another run while it waits for those threads.
        let prepare_result = self.region.prepare(inputs);
        let mut region_users = lock(&self.users);
        region_users.preparing -= 1;
        if let Ok(prepare_result) = &prepare_result {
            *region_users.counts.entry(prepare_result.plan).or_default() += 1;
        }
        self.release_unused(&mut region_users);
        prepare_result
    }

    /// Removes a user from a plan; a plan without users is released.
    fn remove_user(&self, plan: u64) {
        let mut region_users = lock(&self.users);
        if let Some(count) = region_users.counts.get_mut(&plan) {
            *count -= 1;
            if *count == 0 {
                region_users.counts.remove(&plan);
                region_users.unused.push(plan);
            }
        }
        self.release_unused(&mut region_users);
    }

    fn release_unused(&self, region_users: &mut Users) {
        if region_users.preparing > 0 {
            return;
        }
        for plan in std::mem::take(&mut region_users.unused) {
            if !region_users.counts.contains_key(&plan) {
                self.region.release(plan);
            }
        }
    }
}
