//! Metrics in the Prometheus text format, with Triton's names for metrics that Triton defines.

use crate::app::App;
use crate::served::ServedModel;
use crate::stats::{Counters, FailReason, Histogram};
use byoc_ir::tensor::memory;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Counter of a model version: name, help text, and a function that reads the value.
type Counter = (&'static str, &'static str, fn(&Counters) -> u64);

const COUNTERS: [Counter; 8] = [
    ("nv_inference_request_success", "Number of successful requests", |n| n.success.count),
    ("nv_inference_count", "Number of batch items in successful requests", |n| n.inference_count),
    ("nv_inference_exec_count", "Number of model executions", |n| n.execution_count),
    ("nv_inference_request_duration_us", "Total duration of successful requests, in microseconds", |n| {
        n.success.ns / 1000
    }),
    ("nv_inference_queue_duration_us", "Total time of the requests in the queue, in microseconds", |n| {
        n.queue.ns / 1000
    }),
    ("nv_inference_compute_input_duration_us", "Total time to concatenate inputs, in microseconds", |n| {
        n.compute_input.ns / 1000
    }),
    ("nv_inference_compute_infer_duration_us", "Total duration of model executions, in microseconds", |n| {
        n.compute_infer.ns / 1000
    }),
    ("nv_inference_compute_output_duration_us", "Total time to split outputs, in microseconds", |n| {
        n.compute_output.ns / 1000
    }),
];

/// Histogram of a model version: name, help text, and a function that returns it.
type Distribution = (&'static str, &'static str, fn(&Counters) -> &Histogram);

const HISTOGRAMS: [Distribution; 4] = [
    ("byoc_request_duration_us", "Duration of a request, in microseconds", |n| &n.request_us),
    ("byoc_queue_duration_us", "Time of a request in the queue, in microseconds", |n| &n.queue_us),
    ("byoc_compute_duration_us", "Duration of a model execution, in microseconds", |n| &n.compute_us),
    ("byoc_batch_size", "Number of batch items per model execution", |n| &n.batch_sizes),
];

/// Returns the metrics in the Prometheus text format.
pub fn text(app: &App) -> String {
    let models: Vec<(Arc<ServedModel>, Counters, String)> = app
        .repository
        .ready_models()
        .into_iter()
        .map(|model| {
            let mut labels = format!("model=\"{}\",version=\"{}\"", escape(&model.name), model.version);
            for (name, value) in &model.config.metric_tags {
                let _ = write!(labels, ",{name}=\"{}\"", escape(value));
            }
            let counters = model.stats.snapshot();
            (model, counters, labels)
        })
        .collect();
    let mut text = String::new();
    for (name, help, value) in COUNTERS {
        write_head(&mut text, name, help, "counter");
        for (_, counters, labels) in &models {
            let _ = writeln!(text, "{name}{{{labels}}} {}", value(counters));
        }
    }
    write_head(&mut text, "nv_inference_request_failure", "Number of failed requests", "counter");
    for (_, counters, labels) in &models {
        for ((_, reason), failure_count) in FailReason::ALL.iter().zip(counters.failures) {
            let _ =
                writeln!(text, "nv_inference_request_failure{{{labels},reason=\"{reason}\"}} {}", failure_count.count);
        }
    }
    write_head(&mut text, "nv_inference_pending_request_count", "Number of requests in the queue", "gauge");
    for (model, _, labels) in &models {
        let _ = writeln!(text, "nv_inference_pending_request_count{{{labels}}} {}", model.scheduler.pending_count());
    }
    write_head(&mut text, "nv_model_load_duration_secs", "Duration of the last load of the model, in seconds", "gauge");
    for (_, counters, labels) in &models {
        let _ = writeln!(text, "nv_model_load_duration_secs{{{labels}}} {}", counters.load.as_secs_f64());
    }
    for (name, help, histogram) in HISTOGRAMS {
        write_head(&mut text, name, help, "histogram");
        for (_, counters, labels) in &models {
            write_histogram(&mut text, name, labels, histogram(counters));
        }
    }
    let name = "byoc_region_duration_us";
    write_head(&mut text, name, "Duration of a region in the runs that were timed, in microseconds", "histogram");
    for (_, counters, labels) in &models {
        for (region, histogram) in &counters.regions_us {
            write_histogram(&mut text, name, &format!("{labels},region=\"{}\"", escape(region)), histogram);
        }
    }
    let connections = &app.connections;
    let values = [
        (
            "byoc_connections",
            "Number of open connections",
            "gauge",
            connections.open_count.load(Ordering::Relaxed) as u64,
        ),
        (
            "byoc_connections_refused",
            "Number of connections closed because of the limit --max-connections",
            "counter",
            connections.refused_count.load(Ordering::Relaxed),
        ),
        (
            "byoc_memory_used_bytes",
            "Memory used by requests, tensors and arenas, in bytes",
            "gauge",
            memory::used() as u64,
        ),
        (
            "byoc_memory_limit_bytes",
            "Memory limit for requests, tensors and arenas, in bytes",
            "gauge",
            memory::limit() as u64,
        ),
    ];
    for (name, help, kind, value) in values {
        write_head(&mut text, name, help, kind);
        let _ = writeln!(text, "{name} {value}");
    }
    text
}

fn write_head(text: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn write_histogram(text: &mut String, name: &str, labels: &str, histogram: &Histogram) {
    let mut cumulative_count = 0;
    for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
        cumulative_count += count;
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {cumulative_count}");
    }
    cumulative_count += histogram.counts.last().copied().unwrap_or_default();
    let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {cumulative_count}");
    let _ = writeln!(text, "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {cumulative_count}", histogram.sum);
}

/// Escapes a label value.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
