//! The messages of Modal's protocol that the fake reads and writes. Written apart from those of the provider, so that an
//! error in one of them shows.

use std::collections::HashMap;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

/// One text in field 1: ids and tokens.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Text {
    #[prost(string, tag = "1")]
    pub(super) text: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AppGetOrCreate {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) environment: String,
    #[prost(int32, tag = "3")]
    pub(super) creation: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EnvironmentAnswer {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) metadata: Option<EnvironmentMetadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EnvironmentMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) settings: Option<Text>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SecretGetOrCreate {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SecretAnswer {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) metadata: Option<SecretMetadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SecretMetadata {
    #[prost(string, repeated, tag = "3")]
    pub(super) keys: Vec<String>,
}

/// The request and the answer have the same form.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Hashes {
    #[prost(string, repeated, tag = "1")]
    pub(super) hashes: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MountPutFile {
    #[prost(string, tag = "2")]
    pub(super) sha256_hex: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) data: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(super) blob_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MountPutFileAnswer {
    #[prost(bool, tag = "2")]
    pub(super) exists: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MountGetOrCreate {
    #[prost(int32, tag = "4")]
    pub(super) creation: i32,
    #[prost(message, repeated, tag = "5")]
    pub(super) files: Vec<MountFile>,
    #[prost(string, tag = "6")]
    pub(super) app_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MountFile {
    #[prost(string, tag = "1")]
    pub(super) filename: String,
    #[prost(string, tag = "3")]
    pub(super) sha256_hex: String,
    #[prost(uint32, optional, tag = "5")]
    pub(super) mode: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BlobCreate {
    #[prost(string, tag = "1")]
    pub(super) md5: String,
    #[prost(int64, tag = "3")]
    pub(super) length: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BlobAnswer {
    #[prost(string, repeated, tag = "4")]
    pub(super) blob_ids: Vec<String>,
    #[prost(message, optional, tag = "5")]
    pub(super) upload_urls: Option<Urls>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Urls {
    #[prost(string, repeated, tag = "1")]
    pub(super) items: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageGetOrCreate {
    #[prost(message, optional, tag = "2")]
    pub(super) image: Option<Image>,
    #[prost(string, tag = "4")]
    pub(super) app_id: String,
    #[prost(bool, tag = "7")]
    pub(super) force_build: bool,
    #[prost(string, tag = "9")]
    pub(super) builder_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Image {
    #[prost(message, repeated, tag = "5")]
    pub(super) base_images: Vec<BaseImage>,
    #[prost(string, repeated, tag = "6")]
    pub(super) commands: Vec<String>,
    #[prost(string, tag = "15")]
    pub(super) context_mount_id: String,
    #[prost(message, optional, tag = "17")]
    pub(super) registry: Option<RegistryConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BaseImage {
    #[prost(string, tag = "1")]
    pub(super) image_id: String,
    #[prost(string, tag = "2")]
    pub(super) docker_tag: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RegistryConfig {
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(string, tag = "2")]
    pub(super) secret_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageAnswer {
    #[prost(string, tag = "1")]
    pub(super) image_id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) result: Option<GenericResult>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageJoin {
    #[prost(string, tag = "1")]
    pub(super) image_id: String,
    #[prost(float, tag = "2")]
    pub(super) timeout: f32,
    #[prost(string, tag = "3")]
    pub(super) last_entry_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageJoinAnswer {
    #[prost(message, optional, tag = "1")]
    pub(super) result: Option<GenericResult>,
    #[prost(message, repeated, tag = "2")]
    pub(super) logs: Vec<Text>,
    #[prost(string, tag = "3")]
    pub(super) entry_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GenericResult {
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
    #[prost(string, tag = "2")]
    pub(super) exception: String,
    #[prost(int32, tag = "3")]
    pub(super) exitcode: i32,
}

pub(super) const SUCCESS: i32 = 1;
pub(super) const FAILURE: i32 = 2;
pub(super) const TERMINATED: i32 = 3;
pub(super) const TIMEOUT: i32 = 4;
pub(super) const INIT_FAILURE: i32 = 5;
pub(super) const INTERNAL_FAILURE: i32 = 6;
pub(super) const OUT_OF_MEMORY: i32 = 10;

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxCreate {
    #[prost(string, tag = "1")]
    pub(super) app_id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) definition: Option<Definition>,
    #[prost(message, repeated, tag = "4")]
    pub(super) tags: Vec<Tag>,
    #[prost(message, repeated, tag = "6")]
    pub(super) secret_sources: Vec<SecretSource>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SecretSource {
    #[prost(message, optional, tag = "2")]
    pub(super) env: Option<StringMap>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StringMap {
    #[prost(map = "string, string", tag = "1")]
    pub(super) contents: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Definition {
    #[prost(string, repeated, tag = "1")]
    pub(super) entrypoint_args: Vec<String>,
    #[prost(string, tag = "3")]
    pub(super) image_id: String,
    #[prost(message, optional, tag = "5")]
    pub(super) resources: Option<Resources>,
    #[prost(uint32, tag = "7")]
    pub(super) timeout_secs: u32,
    #[prost(string, optional, tag = "8")]
    pub(super) workdir: Option<String>,
    #[prost(message, optional, tag = "22")]
    pub(super) network_access: Option<NetworkAccess>,
    #[prost(string, optional, tag = "30")]
    pub(super) name: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Resources {
    #[prost(uint32, tag = "2")]
    pub(super) memory_mb: u32,
    #[prost(uint32, tag = "3")]
    pub(super) milli_cpu: u32,
    #[prost(uint32, tag = "5")]
    pub(super) memory_mb_max: u32,
    #[prost(uint32, tag = "7")]
    pub(super) milli_cpu_max: u32,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct NetworkAccess {
    /// 1 for open, 2 for blocked.
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tag {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxCreated {
    #[prost(string, tag = "1")]
    pub(super) sandbox_id: String,
    #[prost(string, tag = "3")]
    pub(super) task_id: String,
    #[prost(message, optional, tag = "4")]
    pub(super) metadata: Option<HandleMetadata>,
    #[prost(message, optional, tag = "5")]
    pub(super) access: Option<RouterAccess>,
    #[prost(string, tag = "6")]
    pub(super) sandbox_token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HandleMetadata {
    #[prost(message, optional, tag = "1")]
    pub(super) result: Option<GenericResult>,
    #[prost(string, tag = "2")]
    pub(super) app_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RouterAccess {
    #[prost(string, tag = "1")]
    pub(super) jwt: String,
    #[prost(string, tag = "2")]
    pub(super) url: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxWait {
    #[prost(string, tag = "1")]
    pub(super) sandbox_id: String,
    #[prost(float, tag = "2")]
    pub(super) timeout: f32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxWaited {
    #[prost(message, optional, tag = "1")]
    pub(super) result: Option<GenericResult>,
    #[prost(message, optional, tag = "2")]
    pub(super) metadata: Option<HandleMetadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxTerminated {
    #[prost(message, optional, tag = "1")]
    pub(super) existing_result: Option<GenericResult>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TaskIdAnswer {
    #[prost(string, optional, tag = "1")]
    pub(super) task_id: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub(super) task_result: Option<GenericResult>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TagsSet {
    #[prost(string, tag = "2")]
    pub(super) sandbox_id: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) tags: Vec<Tag>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TagsAnswer {
    #[prost(message, repeated, tag = "1")]
    pub(super) tags: Vec<Tag>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxList {
    #[prost(string, tag = "1")]
    pub(super) app_id: String,
    #[prost(double, tag = "2")]
    pub(super) before_timestamp: f64,
    #[prost(bool, tag = "4")]
    pub(super) include_finished: bool,
    #[prost(message, repeated, tag = "5")]
    pub(super) tags: Vec<Tag>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxListAnswer {
    #[prost(message, repeated, tag = "1")]
    pub(super) sandboxes: Vec<SandboxInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxInfo {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(double, tag = "3")]
    pub(super) created_at: f64,
    #[prost(string, tag = "5")]
    pub(super) app_id: String,
    #[prost(message, repeated, tag = "6")]
    pub(super) tags: Vec<Tag>,
    #[prost(message, optional, tag = "16")]
    pub(super) metadata: Option<HandleMetadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) details: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Any {
    #[prost(string, tag = "1")]
    pub(super) type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RetryPolicy {
    #[prost(float, tag = "1")]
    pub(super) retry_after_secs: f32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExecStart {
    #[prost(string, tag = "1")]
    pub(super) task_id: String,
    #[prost(string, tag = "2")]
    pub(super) exec_id: String,
    #[prost(string, repeated, tag = "3")]
    pub(super) command: Vec<String>,
    #[prost(string, optional, tag = "7")]
    pub(super) workdir: Option<String>,
    #[prost(map = "string, string", tag = "12")]
    pub(super) env: HashMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    pub(super) secret_sources: Vec<SecretSource>,
}

/// Names a command: the request of several calls.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExecRequest {
    #[prost(string, tag = "1")]
    pub(super) task_id: String,
    #[prost(string, tag = "2")]
    pub(super) exec_id: String,
    /// Only of reads.
    #[prost(uint64, tag = "3")]
    pub(super) offset: u64,
    /// Only of reads: 0 for the output, 1 for errors.
    #[prost(int32, tag = "4")]
    pub(super) file: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Data {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) data: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StdinWrite {
    #[prost(string, tag = "1")]
    pub(super) task_id: String,
    #[prost(string, tag = "2")]
    pub(super) exec_id: String,
    #[prost(uint64, tag = "3")]
    pub(super) offset: u64,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) data: Vec<u8>,
    #[prost(bool, tag = "5")]
    pub(super) eof: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StdinStream {
    #[prost(oneof = "StdinPart", tags = "1, 2, 3")]
    pub(super) part: Option<StdinPart>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum StdinPart {
    #[prost(message, tag = "1")]
    Start(ExecRequest),
    #[prost(bytes, tag = "2")]
    Data(Vec<u8>),
    #[prost(message, tag = "3")]
    End(Empty),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StdinStatus {
    #[prost(uint64, tag = "1")]
    pub(super) written: u64,
    #[prost(bool, tag = "2")]
    pub(super) closed: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExecEnd {
    #[prost(oneof = "ExecStatus", tags = "1, 2")]
    pub(super) status: Option<ExecStatus>,
}

#[derive(Clone, Copy, PartialEq, prost::Oneof)]
pub(super) enum ExecStatus {
    #[prost(int32, tag = "1")]
    Code(i32),
    #[prost(int32, tag = "2")]
    Signal(i32),
}
