//! Benches of the host kernels by operator family, on one thread and on two threads. Throughput counts floating-point
//! operations.

use byoc::runtime::session::Session;
use byoc_benches::models::bench_families;

fn main() {
    let mut criterion = byoc_benches::criterion();
    for threads in [1, 2] {
        let session = Session::without_plugins(threads).expect("cannot start threads");
        bench_families(&mut criterion, &format!("host, {threads} threads"), &session, &[]);
    }
    criterion.final_summary();
}
