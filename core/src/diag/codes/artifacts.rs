//! E07xx: artifacts.

codes! {
    NOT_AN_ARTIFACT = 701, "not a byoc artifact";
}
