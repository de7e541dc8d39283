//! Tests of system shared memory.

use crate::client::{bytes, call, floats};
use crate::grpc::{param, request, tensor};
use crate::models::serve;
use byoc_serve::proto::{
    Empty, InferRequestedOutput, ModelInferRequest, ModelInferResponse, ParameterChoice, SharedMemoryRegion,
    SharedMemoryRequest, SharedMemoryStatusResponse,
};
use rustix::fs::Mode;
use rustix::shm;
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};

/// Shared-memory object, removed on drop.
pub struct Object {
    pub key: String,
    file: File,
}

impl Object {
    pub fn new(size: u64) -> Object {
        static NEXT_ID: AtomicU32 = AtomicU32::new(0);
        let key = format!("byoc_serve_{}_{}", std::process::id(), NEXT_ID.fetch_add(1, Ordering::Relaxed));
        let flags = shm::OFlags::CREATE | shm::OFlags::EXCL | shm::OFlags::RDWR;
        let file = File::from(shm::open(format!("/{key}").as_str(), flags, Mode::RUSR | Mode::WUSR).unwrap());
        file.set_len(size).unwrap();
        Object { key, file }
    }

    pub fn write(&self, at: u64, values: &[f32]) {
        self.file.write_all_at(&bytes(values), at).unwrap();
    }

    pub fn read(&self, at: u64, count: usize) -> Vec<f32> {
        let mut data = vec![0; count * 4];
        self.file.read_exact_at(&mut data, at).unwrap();
        floats(&data)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let _ = shm::unlink(format!("/{}", self.key).as_str());
    }
}

fn shared_span(region: &str, offset: u64, byte_size: u64) -> Value {
    json!({"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": byte_size})
}

fn relu(input: Value, output: Value) -> Value {
    json!({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": input}],
        "outputs": [{"name": "output_0", "parameters": output}],
    })
}

#[test]
fn is_off_unless_allowed() {
    let server = serve(&["relu"], &[]);
    let mut client = server.client();
    let register = json!({"key": "k", "offset": 0, "byte_size": 1});
    for (method, path, body) in [
        ("GET", "/v2/systemsharedmemory/status", ""),
        ("GET", "/v2/systemsharedmemory/region/r/status", ""),
        ("POST", "/v2/systemsharedmemory/region/r/register", &*register.to_string()),
        ("POST", "/v2/systemsharedmemory/unregister", ""),
        ("POST", "/v2/systemsharedmemory/region/r/unregister", ""),
        ("POST", "/v2/models/relu/infer", &*relu(shared_span("r", 0, 16), json!({})).to_string()),
    ] {
        let message = client.request(method, path, &[], body.as_bytes()).error(501);
        assert!(message.contains("--allow-shared-memory"), "{path}: {message}");
    }
    let error = call::<_, Empty>(server.grpc, "SystemSharedMemoryStatus", &SharedMemoryRequest::default()).unwrap_err();
    assert_eq!(error.code, 12);
}

/// Entry in the directory of shared-memory objects that is none of the server's own; removed on drop.
struct Foreign(std::path::PathBuf);

impl Foreign {
    fn new(name: &str, create: impl FnOnce(&std::path::Path)) -> Foreign {
        let path = std::path::PathBuf::from(format!("/dev/shm/byoc_serve_{}_{name}", std::process::id()));
        create(&path);
        Foreign(path)
    }

    fn key(&self) -> &str {
        self.0.file_name().unwrap().to_str().unwrap()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn only_the_servers_own_objects_are_registered() {
    use std::os::unix::fs::{chown, symlink};
    let server = serve(&["relu"], &["--allow-shared-memory"]);
    let mut client = server.client();
    let dir = tempfile::tempdir().unwrap();
    let (file, own) = (dir.path().join("file"), Object::new(64));
    std::fs::write(&file, [0; 64]).unwrap();
    let link = Foreign::new("link", |path| symlink(&file, path).unwrap());
    let link_to_object = Foreign::new("object", |path| symlink(format!("/dev/shm/{}", own.key), path).unwrap());
    let fifo =
        Foreign::new("fifo", |path| rustix::fs::mkfifoat(rustix::fs::CWD, path, Mode::RUSR | Mode::WUSR).unwrap());
    let mut cases = vec![
        (link.key(), "found a symbolic link"),
        (link_to_object.key(), "found a symbolic link"),
        (fifo.key(), "found another kind of file"),
    ];
    let other = Foreign::new("other", |path| std::fs::write(path, [0; 64]).unwrap());
    // Only root can give a file away.
    if chown(&other.0, Some(65534), Some(65534)).is_ok() {
        cases.push((other.key(), "found one of user 65534"));
    }
    for (key, expected) in cases {
        let register = json!({"key": key, "offset": 0, "byte_size": 16});
        let message = client.post("/v2/systemsharedmemory/region/r/register", &register).error(400);
        assert!(message.contains(expected) && message.contains("E0"), "{key}: {message}");
    }
    let register = json!({"key": own.key, "offset": 0, "byte_size": 16});
    client.post("/v2/systemsharedmemory/region/r/register", &register).ok();
}

#[test]
fn inputs_and_outputs_in_a_region() {
    let server = serve(&["relu"], &["--allow-shared-memory"]);
    let mut client = server.client();
    let object = Object::new(100);
    // The offset is not a multiple of the page size, and the region is smaller than its object.
    let register = json!({"key": format!("/{}", object.key), "offset": 4, "byte_size": 64});
    client.post("/v2/systemsharedmemory/region/r/register", &register).ok();
    let status = json!([{"name": "r", "key": format!("/{}", object.key), "offset": 4, "byte_size": 64}]);
    assert_eq!(client.get("/v2/systemsharedmemory/status").ok().json(), status);
    assert_eq!(client.get("/v2/systemsharedmemory/region/r/status").ok().json(), status);
    object.write(4, &[-1.0, 2.0, -3.0, 4.0]);
    let response = client.infer("relu", &relu(shared_span("r", 0, 16), shared_span("r", 32, 32))).ok().json();
    let expected =
        json!({"name": "output_0", "datatype": "FP32", "shape": [1, 4], "parameters": shared_span("r", 32, 16)});
    assert_eq!(response["outputs"][0], expected);
    assert_eq!(object.read(36, 4), [0.0, 2.0, 0.0, 4.0]);
    for (input, output, status, expected) in [
        (shared_span("q", 0, 16), json!({}), 404, "Unable to find shared memory region: 'q'"),
        (shared_span("r", 0, 16), shared_span("q", 0, 16), 404, "Unable to find shared memory region: 'q'"),
        (shared_span("r", 56, 16), json!({}), 400, "Invalid offset + byte size for shared memory region: 'r'"),
        (shared_span("r", u64::MAX, 16), json!({}), 400, "Invalid offset + byte size"),
        (shared_span("r", 0, 12), json!({}), 400, "got unexpected byte size 12, expected 16"),
        (shared_span("r", 0, u64::MAX), json!({}), 400, "got unexpected byte size"),
        (shared_span("r", 0, 16), shared_span("r", 0, 8), 500, "(8 bytes) should be at least 16 bytes"),
        (json!({"shared_memory_region": "r"}), json!({}), 400, "found only 'shared_memory_region'"),
        (
            json!({"shared_memory_region": 3, "shared_memory_byte_size": 16}),
            json!({}),
            400,
            "expected a string, found 3",
        ),
    ] {
        let message = client.infer("relu", &relu(input, output)).error(status);
        assert!(message.contains(expected), "{message}");
    }
    for other in [json!({"classification": 1}), json!({"binary_data": true})] {
        let mut output = shared_span("r", 0, 16);
        output.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        let message = client.infer("relu", &relu(shared_span("r", 0, 16), output)).error(400);
        assert!(message.contains("found both"), "{message}");
    }
    // After an object shrinks, requests that use it fail.
    object.file.set_len(10).unwrap();
    let message = client.infer("relu", &relu(shared_span("r", 0, 16), json!({}))).error(400);
    assert!(message.contains("found an object of 10 bytes"), "{message}");
    let output = json!({"inputs": [crate::client::input("x", &[1, 4], &[0.0; 4])], "outputs": [{"name": "output_0", "parameters": shared_span("r", 0, 16)}]});
    let message = client.infer("relu", &output).error(400);
    assert!(message.contains("found an object of 10 bytes"), "{message}");
    assert_eq!(object.file.metadata().unwrap().len(), 10);
    client.post("/v2/systemsharedmemory/region/unknown/unregister", &json!(null)).ok();
    client.post("/v2/systemsharedmemory/region/r/unregister", &json!(null)).ok();
    assert_eq!(client.get("/v2/systemsharedmemory/status").ok().json(), json!([]));
    assert!(client.get("/v2/systemsharedmemory/region/r/status").error(404).contains("'r'"));
}

#[test]
fn wrong_regions_are_not_registered() {
    let server = serve(&["relu"], &["--allow-shared-memory"]);
    let mut client = server.client();
    let object = Object::new(64);
    let path_of = |name: &str| format!("/v2/systemsharedmemory/region/{name}/register");
    for (key, offset, size, status, expected) in [
        ("no_such_object", 0, 1, 500, "Unable to open shared memory region"),
        ("a/b", 0, 1, 400, "expected a key without inner slashes"),
        ("../etc/passwd", 0, 1, 400, "expected a key without inner slashes"),
        ("..", 0, 1, 500, "Unable to open"),
        ("", 0, 1, 400, "found an empty string"),
        (&object.key, 0, 65, 400, "found an object of 64 bytes"),
        (&object.key, 60, 5, 400, "found an object of 64 bytes"),
        (&object.key, u64::MAX, 2, 400, "found an object of 64 bytes"),
    ] {
        let body = json!({"key": key, "offset": offset, "byte_size": size});
        let message = client.post(&path_of("r"), &body).error(status);
        assert!(message.contains(expected), "{key} {offset} {size}: {message}");
    }
    assert!(client.request("POST", &path_of("r"), &[], b"{\"key\": 3}").error(400).contains("parse"));
    let body = json!({"key": object.key, "offset": 0, "byte_size": 64});
    client.post(&path_of("r"), &body).ok();
    assert!(client.post(&path_of("r"), &body).error(400).contains("already in manager"));
    client.post(&path_of("s"), &body).ok();
    client.post("/v2/systemsharedmemory/unregister", &json!(null)).ok();
    assert_eq!(client.get("/v2/systemsharedmemory/status").ok().json(), json!([]));
}

#[test]
fn one_input_of_three_in_shared_memory_over_grpc() {
    let server = serve(&["sums"], &["--allow-shared-memory"]);
    let object = Object::new(4096);
    object.write(8, &[10.0, 20.0]);
    let region = SharedMemoryRegion { name: "r".into(), key: object.key.clone(), offset: 0, byte_size: 4096 };
    call::<_, Empty>(server.grpc, "SystemSharedMemoryRegister", &region).unwrap();
    assert_eq!(call::<_, Empty>(server.grpc, "SystemSharedMemoryRegister", &region).unwrap_err().code, 6);
    let status: SharedMemoryStatusResponse =
        call(server.grpc, "SystemSharedMemoryStatus", &SharedMemoryRequest::default()).unwrap();
    assert_eq!(status.regions["r"], region);
    let span_of = |offset: i64, size: i64| {
        [
            ("shared_memory_region".to_owned(), param(ParameterChoice::Text("r".into()))),
            ("shared_memory_offset".to_owned(), param(ParameterChoice::Int(offset))),
            ("shared_memory_byte_size".to_owned(), param(ParameterChoice::Int(size))),
        ]
    };
    let mut inputs = ["a", "b", "c"].map(|name| tensor(name, "FP32", &[1, 2])).to_vec();
    inputs[1].parameters.extend(span_of(8, 8));
    let mut infer_request: ModelInferRequest =
        request("sums", inputs, vec![bytes(&[1.0, 2.0]), bytes(&[100.0, 200.0])]);
    infer_request.outputs = ["output_0", "output_1"]
        .map(|name| InferRequestedOutput { name: name.into(), ..InferRequestedOutput::default() })
        .to_vec();
    infer_request.outputs[0].parameters.extend(span_of(64, 8));
    let response: ModelInferResponse = call(server.grpc, "ModelInfer", &infer_request).unwrap();
    assert_eq!(object.read(64, 2), [111.0, 222.0]);
    // The output in shared memory has an empty entry in the raw contents.
    assert_eq!(response.raw_output_contents.len(), 2);
    assert!(response.raw_output_contents[0].is_empty());
    assert_eq!(floats(&response.raw_output_contents[1]), [10.0, 40.0]);
    let unregister = SharedMemoryRequest { name: "r".into() };
    call::<_, Empty>(server.grpc, "SystemSharedMemoryUnregister", &unregister).unwrap();
    assert_eq!(call::<_, Empty>(server.grpc, "ModelInfer", &infer_request).unwrap_err().code, 5);
    assert_eq!(call::<_, Empty>(server.grpc, "SystemSharedMemoryStatus", &unregister).unwrap_err().code, 5);
}

#[test]
fn a_region_that_is_unregistered_while_a_request_uses_it() {
    let server = serve(&["slow"], &["--allow-shared-memory"]);
    let mut client = server.client();
    let object = Object::new(64);
    object.write(0, &[1.0, 2.0, 3.0, 4.0]);
    let register = json!({"key": object.key, "offset": 0, "byte_size": 64});
    client.post("/v2/systemsharedmemory/region/r/register", &register).ok();
    let request = relu(shared_span("r", 0, 16), shared_span("r", 16, 16)).to_string();
    let mut waiting_clients: Vec<_> = (0..3).map(|_| server.client()).collect();
    for client in &mut waiting_clients {
        client.send("POST", "/v2/models/slow/infer", &[], request.as_bytes());
    }
    // The first response shows that the remaining requests have been read.
    waiting_clients[0].receive().ok();
    client.post("/v2/systemsharedmemory/region/r/unregister", &json!(null)).ok();
    for client in &mut waiting_clients[1..] {
        let reply = client.receive();
        // A request that the server had not yet processed when the region was unregistered fails with status 404.
        assert!([200, 404].contains(&reply.status), "{reply:?}");
    }
    assert_eq!(object.read(16, 4), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(client.get("/v2/systemsharedmemory/status").ok().json(), json!([]));
}

/// Size of the input of the model `image` in bytes.
const SIZE: u64 = 32768 * 4;

fn image(input: Value, output: Value) -> Value {
    json!({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 32768], "parameters": input}],
        "outputs": [{"name": "output_0", "parameters": output}, {"name": "output_1"}],
    })
}

#[test]
fn large_tensors_are_used_in_place() {
    let server = serve(&["image"], &["--allow-shared-memory"]);
    let mut client = server.client();
    let object = Object::new(4096 + 3 * SIZE);
    let register = json!({"key": object.key, "offset": 4096, "byte_size": 3 * SIZE});
    client.post("/v2/systemsharedmemory/region/r/register", &register).ok();
    let input: Vec<f32> = (0..32768).map(|i| (i % 7) as f32 - 3.0).collect();
    let expected: Vec<f32> = input.iter().map(|x| x.max(0.0)).collect();
    let input_sum: f32 = input.iter().sum();
    // Input and output are adjacent, misaligned, overlapping, or in the same memory.
    for (source, target) in
        [(0, SIZE), (SIZE + 64, 64), (4, 2 * SIZE - 4), (0, 2 * SIZE - 4), (0, SIZE / 2), (SIZE, SIZE)]
    {
        // In every 32nd execution, regions are timed and results are copied.
        for _ in 0..3 {
            object.write(4096 + source, &input);
            let response = client
                .infer("image", &image(shared_span("r", source, SIZE), shared_span("r", target, SIZE)))
                .ok()
                .json();
            assert_eq!(object.read(4096 + target, 32768), expected, "{source} {target}");
            let sum = response["outputs"][1]["data"][0].as_f64().unwrap();
            assert!((sum - f64::from(input_sum)).abs() < 1.0, "expected {input_sum}, found {sum}");
            assert_eq!(response["outputs"][0]["parameters"], shared_span("r", target, SIZE));
        }
    }
    // If an object shrinks, the requests that use it fail; the server continues.
    object.file.set_len(4096 + SIZE).unwrap();
    for (source, target) in [(0, SIZE), (SIZE, 0), (SIZE, 2 * SIZE)] {
        let message =
            client.infer("image", &image(shared_span("r", source, SIZE), shared_span("r", target, SIZE))).error(400);
        assert!(message.contains("found an object of"), "{message}");
    }
    client.post("/v2/systemsharedmemory/region/r/unregister", &json!(null)).ok();
    let register = json!({"key": object.key, "offset": 4096, "byte_size": SIZE});
    client.post("/v2/systemsharedmemory/region/r/register", &register).ok();
    client.infer("image", &image(shared_span("r", 0, SIZE), json!({}))).ok();
}
