//! The plans of regions whose dimensions a run tells: a model keeps few of them, and tells a backend which ones it lets go.
//!
//! A plan in use is never released: a run holds it, and whoever drops it last says so to the backend. Dimensions that differ
//! may share a plan (a backend without plans of its own calls all of them 0), so users are counted by the plan's number.

use super::kept::{Dims, Kept};
use super::lock::lock;
use super::region::{Prepared, Region};
use super::signature::Signature;
use byoc_core::diag::Diagnostic;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// How many plans a model keeps, or one for each region where it has more of those: regions run one after the other, and with
/// fewer plans than regions each run would make every plan again.
const MAX_PLANS: usize = 64;

/// How many bytes the plans of a model hold together. The newest is kept even where it alone holds more.
const MAX_BYTES: usize = 256 << 20;

/// The plans of a model, by region and dimensions; `None` where the backend does not take them.
type PlansOfModel = Mutex<Kept<(u32, Dims), Option<Arc<Plan>>>>;

/// A plan, until nobody uses it.
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
        self.owner.leave(self.prepared.plan);
    }
}

/// The plans of a region.
pub(super) struct RegionPlans {
    index: u32,
    owner: Arc<Owner>,
    kept: Arc<PlansOfModel>,
}

/// Whom plans are released to.
struct Owner {
    region: Arc<dyn Region>,
    users: Mutex<Users>,
}

#[derive(Default)]
struct Users {
    /// By the plan's number.
    counts: BTreeMap<u64, usize>,
    /// Plans that nobody uses any more. They are released when no `prepare` is under way, which might give one of them again.
    unused: Vec<u64>,
    /// Calls of `prepare` under way.
    preparing: usize,
}

impl RegionPlans {
    /// One for each region of a model that a backend runs.
    pub fn of(regions: &[Option<Arc<dyn Region>>]) -> Vec<Option<Arc<RegionPlans>>> {
        let kept = Arc::new(Mutex::new(Kept::new(MAX_PLANS.max(regions.len()), MAX_BYTES)));
        let plans = |(index, region): (usize, &Option<Arc<dyn Region>>)| {
            let owner = Owner { region: region.clone()?, users: Mutex::default() };
            Some(Arc::new(RegionPlans { index: index as u32, owner: Arc::new(owner), kept: kept.clone() }))
        };
        regions.iter().enumerate().map(plans).collect()
    }

    /// Returns the plan for dimensions that are known before the run. It is kept as long as the model.
    ///
    /// # Errors
    /// When the backend does not take these dimensions.
    pub fn fixed(&self, inputs: &[&[usize]]) -> Result<Prepared, Diagnostic> {
        self.owner.prepare(inputs)
    }

    /// Returns the plan for these input dimensions, made if it is not kept; none when the backend does not take them, or
    /// prepares outputs that the region cannot have.
    pub fn get(&self, inputs: &[&[usize]], signature: &Signature) -> Option<Arc<Plan>> {
        let key = (self.index, inputs.iter().map(|&dims| dims.into()).collect::<Dims>());
        if let Some(kept) = lock(&self.kept).get(&key) {
            return kept;
        }
        let prepared = self.owner.prepare(inputs).map_err(|error| error.to_string());
        let plan = prepared.map(|prepared| Arc::new(Plan { prepared, owner: self.owner.clone() }));
        let made = match plan.and_then(|plan| signature.check_prepared(&plan).map(|()| plan)) {
            Ok(plan) => Some(plan),
            Err(why) => {
                tracing::warn!("a region runs on the host for inputs {inputs:?}: {why}");
                None
            }
        };
        let bytes = made.as_ref().map_or(0, |plan| plan.bytes);
        let gone = lock(&self.kept).insert(key, made.clone(), bytes);
        // Dropped now that the lock is free: the last user of a plan enters the backend.
        drop(gone);
        made
    }
}

impl Owner {
    /// Asks the backend, and counts one user of the plan.
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared, Diagnostic> {
        lock(&self.users).preparing += 1;
        // Without the lock: the backend may use the host's threads, and this one then takes up another run meanwhile.
        let prepared = self.region.prepare(inputs);
        let mut users = lock(&self.users);
        users.preparing -= 1;
        if let Ok(prepared) = &prepared {
            *users.counts.entry(prepared.plan).or_default() += 1;
        }
        self.release_unused(&mut users);
        prepared
    }

    /// Counts one user of a plan less.
    fn leave(&self, plan: u64) {
        let mut users = lock(&self.users);
        if let Some(count) = users.counts.get_mut(&plan) {
            *count -= 1;
            if *count == 0 {
                users.counts.remove(&plan);
                users.unused.push(plan);
            }
        }
        self.release_unused(&mut users);
    }

    fn release_unused(&self, users: &mut Users) {
        if users.preparing > 0 {
            return;
        }
        for plan in std::mem::take(&mut users.unused) {
            if !users.counts.contains_key(&plan) {
                self.region.release(plan);
            }
        }
    }
}
