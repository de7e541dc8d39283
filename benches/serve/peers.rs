//! Throughput and p99 compared with other servers: a `kserve.Model` around ONNX Runtime, and MLServer with the same,
//! each in a separate environment.
//!
//! HTTP is measured with `hey`, gRPC with this program's own loop. A round measures all servers in sequence.

use crate::client::{Http, binary_header, frame};
use crate::load::{Connection, Exchange, clients};
use crate::models::{Model, backend, folder, networks};
use crate::numbers::{median, percentile, spread, verdict};
use crate::processes::{Server, grpc_request, start_byoc};
use crate::{Options, Result};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const CLIENTS: [usize; 3] = [1, 4, 16];

/// Protocol of a measurement, and the form of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Binary,
    Json,
    Grpc,
}

impl Form {
    fn label(self) -> &'static str {
        match self {
            Form::Binary => "HTTP binary",
            Form::Json => "HTTP JSON",
            Form::Grpc => "gRPC",
        }
    }
}

/// Rates and p99 of a server by model, form and number of clients; 0 clients for the run at a rate.
type Table = BTreeMap<(usize, Form, usize), Vec<Vec<f64>>>;

/// Runs the measurement.
pub fn run(options: &Options) -> Result<()> {
    let rounds = options.number("rounds", 5.0)? as usize;
    let time = Duration::from_secs_f64(options.number("seconds", 2.0)?);
    let models = networks()?;
    let servers = start(options, &models)?;
    println!(
        "{} rounds of {:.1} s, {} threads",
        rounds,
        time.as_secs_f64(),
        std::thread::available_parallelism().map_or(1, usize::from)
    );
    let mut table = Table::new();
    for round in 0..rounds {
        for (at, model) in models.iter().enumerate() {
            for form in forms(model) {
                for count in CLIENTS {
                    let rates =
                        each(&servers, round, |server| rate(server, model, form, count, time, None).map(|m| m.0));
                    table.entry((at, form, count)).or_default().push(rates);
                }
                let best = table[&(at, form, 4)]
                    .iter()
                    .flatten()
                    .copied()
                    .filter(|rate| *rate > 0.0)
                    .fold(f64::INFINITY, f64::min);
                let p99 =
                    each(&servers, round, |server| rate(server, model, form, 4, time, Some(0.8 * best)).map(|m| m.1));
                table.entry((at, form, 0)).or_default().push(p99);
            }
        }
        println!("round {} of {rounds} done", round + 1);
    }
    print_table(&models, &servers, &table);
    for server in &servers {
        println!("{}: resident {:.0} MB", server.name, server.resident()? as f64 / 1e6);
    }
    Ok(())
}

/// An image as JSON is megabytes of digits, so JSON is measured with the small model only.
fn forms(model: &Model) -> Vec<Form> {
    if model.data().len() < 10_000 {
        vec![Form::Binary, Form::Json, Form::Grpc]
    } else {
        vec![Form::Binary, Form::Grpc]
    }
}

/// Measures all servers, in reverse order in every second round. A failure counts as 0.
fn each(servers: &[Server], round: usize, measure: impl Fn(&Server) -> Result<f64>) -> Vec<f64> {
    let mut found = vec![0.0; servers.len()];
    let mut order: Vec<usize> = (0..servers.len()).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    for at in order {
        match measure(&servers[at]) {
            Ok(value) => found[at] = value,
            Err(error) => {
                let text: String = error.chars().take(200).collect();
                eprintln!("{}: {text}", servers[at].name);
            }
        }
    }
    found
}

fn start(options: &Options, models: &[Model]) -> Result<Vec<Server>> {
    let mut flags = backend()?;
    flags.extend(["--cache-dir".to_owned(), folder()?.join("cache").display().to_string()]);
    flags.extend(crate::models::named(models));
    let mut servers = vec![start_byoc(&flags.iter().map(String::as_str).collect::<Vec<_>>())?];
    if let Some(python) = options.text("kserve") {
        servers.push(peer("kserve", python, "kserve_model.py", models, 18_080)?);
    }
    if let Some(python) = options.text("mlserver") {
        servers.push(peer("mlserver", python, "mlserver_model.py", models, 18_090)?);
    }
    Ok(servers)
}

/// Starts a server in Python, which takes ports and models as arguments.
fn peer(name: &str, python: &str, script: &str, models: &[Model], port: u16) -> Result<Server> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("serve/peers").join(script);
    let mut command = Command::new(python);
    command.arg(script).arg(port.to_string()).arg((port + 1).to_string());
    for model in models {
        command.arg(format!(
            "{}={}",
            model.name,
            std::path::absolute(&model.file).map_err(|e| e.to_string())?.display()
        ));
    }
    let log = folder()?.join(format!("{name}.log"));
    let log = std::fs::File::create(log).map_err(|e| e.to_string())?;
    command.stdout(log.try_clone().map_err(|e| e.to_string())?).stderr(log).stdin(Stdio::null());
    command.current_dir(folder()?);
    let child = command.spawn().map_err(|e| format!("{python}: {e}"))?;
    let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let server = Server { name: name.into(), child, http: address(port), grpc: address(port + 1) };
    server.wait_until_ready()?;
    for model in models {
        let path = format!("/v2/models/{}/ready", model.name);
        let mut tries = 0;
        while Http::connect(server.http).and_then(|mut client| client.get(&path)).is_ok_and(|status| status != 200) {
            std::thread::sleep(Duration::from_millis(100));
            tries += 1;
            if tries == 600 {
                return Err(format!("expected {} to be ready in {name}", model.name));
            }
        }
    }
    Ok(server)
}

/// Returns the rate in requests per second, and p99 in milliseconds.
fn rate(
    server: &Server,
    model: &Model,
    form: Form,
    count: usize,
    time: Duration,
    limit: Option<f64>,
) -> Result<(f64, f64)> {
    if form != Form::Grpc {
        return hey(server, model, form, count, time, limit);
    }
    let message = frame(&grpc_request(model.name, &model.input, &model.shape, model.data()));
    let exchange = Exchange::Grpc { message };
    Connection::open(server, &exchange)?.exchange()?;
    let interval = limit.map(|limit| Duration::from_secs_f64(count as f64 / limit));
    let measured = clients(server, &exchange, count, time, interval)?;
    Ok((measured.rate, percentile(&measured.latencies, 0.99) / 1e3))
}

fn hey(
    server: &Server,
    model: &Model,
    form: Form,
    count: usize,
    time: Duration,
    limit: Option<f64>,
) -> Result<(f64, f64)> {
    let (data, file) = (model.data(), folder()?.join(format!("{}-{form:?}.body", model.name)));
    let mut command = Command::new("hey");
    command.args(["-z", &format!("{:.1}s", time.as_secs_f64()), "-c", &count.to_string(), "-m", "POST", "-t", "20"]);
    let body = if form == Form::Binary {
        let json = binary_header(&model.input, &model.shape, data.len());
        command
            .args(["-T", "application/octet-stream", "-H"])
            .arg(format!("Inference-Header-Content-Length: {}", json.len()));
        [json.as_bytes(), &data].concat()
    } else {
        command.args(["-T", "application/json"]);
        let values: Vec<f32> =
            data.chunks_exact(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap_or_default())).collect();
        let input = serde_json::json!({"name": model.input, "shape": model.shape, "datatype": "FP32", "data": values});
        serde_json::json!({"inputs": [input]}).to_string().into_bytes()
    };
    std::fs::write(&file, body).map_err(|e| e.to_string())?;
    if let Some(limit) = limit {
        command.args(["-q", &format!("{:.3}", limit / count as f64)]);
    }
    command.arg("-D").arg(&file).arg(format!("http://{}/v2/models/{}/infer", server.http, model.name));
    let output = command.output().map_err(|e| format!("hey, which Debian has: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let after = |word: &str| text.lines().find_map(|line| line.trim().strip_prefix(word)).map(str::trim);
    let failed =
        text.lines().any(|line| line.trim().starts_with('[') && line.contains("responses") && !line.contains("[200]"));
    let rate = after("Requests/sec:").and_then(|rest| rest.parse().ok());
    let p99 = after("99% in")
        .or_else(|| after("99%% in"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    match (rate, failed) {
        (Some(rate), false) if text.contains("[200]") => Ok((rate, p99.unwrap_or_default() * 1e3)),
        _ => Err(format!(
            "{} {} failed: {}",
            model.name,
            form.label(),
            text.lines().skip(8).collect::<Vec<_>>().join(" ")
        )),
    }
}

fn print_table(models: &[Model], servers: &[Server], table: &Table) {
    let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
    println!("\n| model | protocol | | {} | |", names.join(" | "));
    println!("|---|---|---|{}---|", "---|".repeat(names.len()));
    for ((at, form, count), rounds) in table {
        let column = |server: usize| rounds.iter().map(|round| round[server]).collect::<Vec<f64>>();
        let is_rate = *count > 0;
        let cell = |server: usize| {
            let values = column(server);
            if values.iter().all(|value| *value == 0.0) {
                "fails".to_owned()
            } else {
                spread(&values, if is_rate { 0 } else { 2 })
            }
        };
        let own = median(&column(0));
        let others: Vec<f64> =
            (1..servers.len()).map(|server| median(&column(server))).filter(|value| *value > 0.0).collect();
        let is_met = others.iter().all(|other| if is_rate { own >= *other } else { own <= *other });
        let what = if is_rate { format!("{count} clients, 1/s") } else { "p99 ms at 80 %".to_owned() };
        let cells: Vec<String> = (0..servers.len()).map(cell).collect();
        println!("| {} | {} | {what} | {} | {} |", models[*at].name, form.label(), cells.join(" | "), verdict(is_met));
    }
}
