//! Cost estimate of a candidate, which its verdict may carry.

use crate::backend::{Refusal, Verdict};
use abi_stable::std_types::RString;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Estimate of one run of a candidate on its backend. Crosses the boundary as a JSON object, in which fields without an
/// estimate are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Estimate {
    /// Time in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nanoseconds: Option<u64>,
    /// Device memory in bytes: weights, and intermediate results of a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Number of kernels, commands or transfers that a run starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launches: Option<u64>,
    /// Additional backend-specific metrics, by name.
    #[serde(flatten)]
    pub further: Map<String, Value>,
}

impl Estimate {
    /// Returns the sum of two estimates. A field missing from either operand is missing from the sum; the sum never has
    /// `further` metrics.
    pub fn plus(&self, other: &Estimate) -> Estimate {
        let sum = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        Estimate {
            nanoseconds: sum(self.nanoseconds, other.nanoseconds),
            bytes: sum(self.bytes, other.bytes),
            launches: sum(self.launches, other.launches),
            further: Map::new(),
        }
    }

    /// Returns true if no field is set.
    pub fn is_empty(&self) -> bool {
        *self == Estimate::default()
    }
}

impl Verdict {
    /// Code of a positive verdict with an estimate as its detail.
    pub const ESTIMATED: &'static str = "Supported";

    /// Creates a positive verdict that carries a cost estimate.
    pub fn estimated(estimate: &Estimate) -> Verdict {
        let detail = serde_json::to_string(estimate).map_or_else(|_| "{}".into(), RString::from);
        Verdict::Refused(Refusal { code: Verdict::ESTIMATED.into(), detail, hint: RString::new() })
    }

    /// Returns the estimate of a positive verdict; `None` for a refusal and for a verdict without an estimate.
    pub fn estimate(&self) -> Option<Estimate> {
        match self {
            Verdict::Refused(refusal) if refusal.code == Verdict::ESTIMATED => {
                serde_json::from_str(&refusal.detail).ok()
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RefusalCode;

    #[test]
    fn estimates_cross_in_a_verdict() {
        let estimate = Estimate { nanoseconds: Some(5), launches: Some(2), ..Estimate::default() };
        assert_eq!(Verdict::estimated(&estimate).estimate(), Some(estimate.clone()));
        assert_eq!(Verdict::Supported.estimate(), None);
        assert_eq!(Verdict::refused(RefusalCode::DynamicDim, "{}").estimate(), None);
        let sum = estimate.plus(&Estimate { nanoseconds: Some(7), bytes: Some(1), ..Estimate::default() });
        assert_eq!(sum, Estimate { nanoseconds: Some(12), ..Estimate::default() });
        assert!(Estimate::default().is_empty() && !estimate.is_empty());
        let cycle_estimate: Estimate = serde_json::from_str(r#"{"cycles": 9, "bytes": 4}"#).unwrap();
        assert_eq!((cycle_estimate.bytes, &cycle_estimate.further["cycles"]), (Some(4), &9.into()));
    }
}
