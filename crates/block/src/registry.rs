//! The meaning of names in a SPEC: each name has a constructor that opens a device.
//!
//! Owns: the table of names, opening the devices of nested SPECs, and errors with the position in the SPEC. Crates that
//! depend on this one register their own devices, which this crate cannot name.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;

use crate::device::SharedDevice;
use crate::error::{DeviceErrorKind, DeviceOperation, Error};
use crate::spec::{DeviceSpec, SpecArgument, SpecError, SpecForm, is_name};

/// The engine with which files and disks are read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FileEngine {
    /// io_uring if the kernel allows it, otherwise POSIX.
    #[default]
    Auto,
    /// io_uring; opening fails if the kernel does not allow it.
    Uring,
    /// `pread`, `pwrite` and `fdatasync` on a pool of threads.
    Posix,
}

impl FromStr for FileEngine {
    type Err = String;
    fn from_str(text: &str) -> Result<FileEngine, String> {
        match text {
            "auto" => Ok(FileEngine::Auto),
            "uring" => Ok(FileEngine::Uring),
            "posix" => Ok(FileEngine::Posix),
            _ => Err(format!("\"{text}\" is no engine; write auto, uring or posix")),
        }
    }
}

/// The options for opening the devices of a SPEC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    /// If set, a file that does not exist is created with this size, and its blocks are allocated. *Units*: bytes.
    pub create_bytes: Option<u64>,
    /// The engine with which files and disks are read and written.
    pub engine: FileEngine,
    /// Whether to bypass the page cache (`O_DIRECT`), if the file system supports this.
    pub direct: bool,
    /// Whether to open a device that another client has open, if the device supports this. The other client can then no
    /// longer use the device.
    pub take_over: bool,
    /// Whether to open a device of two donors if only one of them can be reached and the state of the other is unknown.
    /// With this option the user asserts that the device was never used without the donor that can be reached.
    pub trust_remaining: bool,
    /// Whether other processes, also on this host, may open the file or disk in the same way and write to it. These
    /// processes must agree among themselves which process writes where.
    pub is_shared: bool,
    /// Whether to open files and disks only for reading. Several processes can have a device open in this way at the same
    /// time, but not while another process may write to it. Devices that are neither files nor disks ignore this option.
    pub is_read_only: bool,
    /// Whether a file or export whose size is no multiple of the device's block is used to its last byte: its last
    /// block reads as zeroes behind that byte, and takes nothing but zeroes there. Without this option the bytes in the
    /// last block are left out. Such a file is read and written through the page cache.
    pub pads_tail: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        let engine = FileEngine::Auto;
        OpenOptions {
            create_bytes: None,
            engine,
            direct: true,
            take_over: false,
            trust_remaining: false,
            is_shared: false,
            is_read_only: false,
            pads_tail: false,
        }
    }
}

/// The result of a constructor.
pub type OpenFuture = Pin<Box<dyn Future<Output = Result<SharedDevice, Error>> + Send>>;

type Constructor = Arc<dyn Fn(SpecArguments) -> OpenFuture + Send + Sync>;

/// The names that a SPEC can use. *Cost*: a clone copies the table of names.
#[derive(Clone)]
pub struct DeviceRegistry {
    constructors: BTreeMap<String, Constructor>,
}

impl DeviceRegistry {
    /// A registry without names; [`DeviceRegistry::with_builtins`] begins with this crate's devices and filters.
    pub fn empty() -> DeviceRegistry {
        DeviceRegistry { constructors: BTreeMap::new() }
    }

    /// Registers a constructor under a name, and replaces an earlier constructor of the same name.
    ///
    /// # Panics
    /// Panics if `name` is not a valid name in a SPEC, which is a bug of the caller.
    pub fn register<F, O>(&mut self, name: &str, constructor: F)
    where
        F: Fn(SpecArguments) -> O + Send + Sync + 'static,
        O: Future<Output = Result<SharedDevice, Error>> + Send + 'static,
    {
        assert!(is_name(name), "\"{name}\" cannot stand in a SPEC");
        let constructor: Constructor = Arc::new(move |arguments| Box::pin(constructor(arguments)));
        self.constructors.insert(name.to_owned(), constructor);
    }

    /// The known names, in alphabetical order.
    pub fn names(&self) -> Vec<&str> {
        self.constructors.keys().map(String::as_str).collect()
    }

    /// Opens the device that a SPEC names.
    ///
    /// *Errors*: [`DeviceErrorKind::Invalid`] with the position of the mistake, if the SPEC is wrong; otherwise the error of
    /// the device.
    pub async fn open(&self, spec: &str, options: &OpenOptions) -> Result<SharedDevice, Error> {
        let source: Arc<str> = Arc::from(spec);
        let parsed = DeviceSpec::parse(spec).map_err(|error| invalid(&source, &error))?;
        self.open_parsed(parsed, source, options.clone()).await
    }

    fn open_parsed(&self, spec: DeviceSpec, source: Arc<str>, options: OpenOptions) -> OpenFuture {
        let (name, rest, list) = match &spec.form {
            SpecForm::Call { name, arguments } => (name.clone(), None, arguments.clone()),
            SpecForm::Text(text) => match (spec.scheme(), spec.path()) {
                (Some((name, rest)), _) => (name.to_owned(), Some(rest.to_owned()), Vec::new()),
                (None, Some(path)) => ("file".to_owned(), Some(path.to_owned()), Vec::new()),
                (None, None) => {
                    let message = format!("\"{text}\" is neither a path nor a device; a path has a slash: ./{text}");
                    return self.refuse(&source, SpecError::new(spec.position, message));
                }
            },
        };
        let Some(constructor) = self.constructors.get(&name) else {
            let known = self.names().join(", ");
            let message = format!("no device is named \"{name}\"; known are {known}");
            return self.refuse(&source, SpecError::new(spec.position, message));
        };
        constructor(self.taken_apart(name, rest, list, spec.position, source, options))
    }

    /// Parses the SPEC `name(…)` without opening a device. This is for commands about devices of one kind.
    ///
    /// *Errors*: [`DeviceErrorKind::Invalid`] with the position of the mistake. A SPEC whose name is not `name` is also a
    /// mistake.
    pub fn arguments(&self, spec: &str, name: &str, options: &OpenOptions) -> Result<SpecArguments, Error> {
        let source: Arc<str> = Arc::from(spec);
        let parsed = DeviceSpec::parse(spec).map_err(|error| invalid(&source, &error))?;
        match parsed.form {
            SpecForm::Call { name: found, arguments } if found == name => {
                Ok(self.taken_apart(found, None, arguments, parsed.position, source, options.clone()))
            }
            _ => Err(invalid(&source, &SpecError::new(parsed.position, format!("expected {name}(…)")))),
        }
    }

    fn taken_apart(
        &self,
        name: String,
        rest: Option<String>,
        list: Vec<SpecArgument>,
        position: usize,
        source: Arc<str>,
        options: OpenOptions,
    ) -> SpecArguments {
        SpecArguments {
            name,
            rest,
            list: list.into(),
            asked: Vec::new(),
            position,
            source,
            options,
            registry: self.clone(),
        }
    }

    fn refuse(&self, source: &str, error: SpecError) -> OpenFuture {
        Box::pin(std::future::ready(Err(invalid(source, &error))))
    }
}

fn invalid(source: &str, error: &SpecError) -> Error {
    Error::new(DeviceErrorKind::Invalid, source, DeviceOperation::Open, error.to_string())
}

/// Opens the device that a SPEC names. The SPEC can use only the devices and filters of this crate; see
/// [`DeviceRegistry::open`].
pub async fn open(spec: &str, options: &OpenOptions) -> Result<SharedDevice, Error> {
    DeviceRegistry::with_builtins().open(spec, options).await
}

/// The arguments of a constructor: the parts of its SPEC, and the options.
pub struct SpecArguments {
    name: String,
    rest: Option<String>,
    list: std::collections::VecDeque<SpecArgument>,
    asked: Vec<&'static str>,
    position: usize,
    source: Arc<str>,
    options: OpenOptions,
    registry: DeviceRegistry,
}

impl SpecArguments {
    /// The options for opening devices.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// The text after the colon of `name:rest`.
    pub fn rest(&self) -> Result<&str, Error> {
        match self.rest.as_deref() {
            Some(rest) if !rest.is_empty() => Ok(rest),
            _ => Err(self.error(self.position, format!("{0} is written {0}:…", self.name))),
        }
    }

    /// Opens the next argument that is not `key=value` as a device.
    pub async fn device(&mut self) -> Result<SharedDevice, Error> {
        let index = self.list.iter().position(|argument| argument.key.is_none());
        let Some(argument) = index.and_then(|index| self.list.remove(index)) else {
            let message = format!("{0} needs a device: {0}(DEVICE)", self.name);
            return Err(self.error(self.position, message));
        };
        self.registry.open_parsed(argument.value, self.source.clone(), self.options.clone()).await
    }

    /// Opens all arguments that are not `key=value` as devices; at least one is required.
    pub async fn devices(&mut self) -> Result<Vec<SharedDevice>, Error> {
        let mut devices = vec![self.device().await?];
        while self.list.iter().any(|argument| argument.key.is_none()) {
            devices.push(self.device().await?);
        }
        Ok(devices)
    }

    /// Takes the texts of all arguments that are not `key=value`. It is for constructors whose arguments are names,
    /// such as `host:7070`, and not devices.
    ///
    /// *Errors*: if an argument has parentheses.
    pub fn texts(&mut self) -> Result<Vec<String>, Error> {
        let mut texts = Vec::new();
        while let Some(index) = self.list.iter().position(|argument| argument.key.is_none()) {
            let Some(argument) = self.list.remove(index) else { break };
            match argument.value.form {
                SpecForm::Text(text) => texts.push(text),
                SpecForm::Call { name, .. } => {
                    let message = format!("{} takes a name here, not the device {name}(…)", self.name);
                    return Err(self.error(argument.position, message));
                }
            }
        }
        Ok(texts)
    }

    /// The value of the option `key=value`, parsed by `read`, if the SPEC has this option.
    pub fn option<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Error> {
        self.asked.push(key);
        let Some(index) = self.list.iter().position(|argument| argument.key.as_deref() == Some(key)) else {
            return Ok(None);
        };
        let Some(argument) = self.list.remove(index) else { return Ok(None) };
        let SpecForm::Text(text) = &argument.value.form else {
            return Err(self.error(argument.value.position, format!("{key} takes a value, not a device")));
        };
        read(text).map(Some).map_err(|message| self.error(argument.value.position, message))
    }

    /// Fails if the constructor has not taken all arguments. If an option is unknown, the error names the known
    /// options.
    pub fn finish(&self) -> Result<(), Error> {
        let Some(left) = self.list.front() else { return Ok(()) };
        let message = match &left.key {
            Some(key) if self.asked.contains(&key.as_str()) => format!("{key} is given twice"),
            Some(key) if self.asked.is_empty() => format!("{} has no option \"{key}\", nor any other", self.name),
            Some(key) => format!("{} has no option \"{key}\"; known are {}", self.name, self.asked.join(", ")),
            None => format!("{} takes no further device", self.name),
        };
        Err(self.error(left.position, message))
    }

    /// Makes an error with the position of the constructor's name in the SPEC.
    pub fn invalid(&self, message: impl Into<String>) -> Error {
        self.error(self.position, message.into())
    }

    fn error(&self, position: usize, message: String) -> Error {
        invalid(&self.source, &SpecError::new(position, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refused(spec: &str) -> Error {
        match open(spec, &OpenOptions::default()).await {
            Ok(device) => panic!("{spec} opened as {}", device.spec()),
            Err(error) => error,
        }
    }

    #[tokio::test]
    async fn memory_opens_by_name() {
        let device = open("memory:2G", &OpenOptions::default()).await.unwrap();
        assert_eq!((device.geometry().size_bytes, device.spec().as_str()), (2 << 30, "memory:2G"));
    }

    /// An error gives the position in the SPEC, and the known names or the expected form.
    #[tokio::test]
    async fn spec_errors_name_position() {
        let error = refused("flie:/a").await;
        assert_eq!(error.kind, DeviceErrorKind::Invalid);
        assert!(error.detail.contains("at character 1") && error.detail.contains("memory"), "{error}");
        let error = refused("memory:2X").await;
        assert!(error.detail.contains("not a size"), "{error}");
        let error = refused("data.img").await;
        assert!(error.detail.contains("./data.img"), "{error}");
        assert!(refused("memory(2G)").await.detail.contains("memory:…"));
    }

    #[tokio::test]
    async fn higher_floors_register_their_own_names() {
        let mut registry = DeviceRegistry::with_builtins();
        registry.register("twice", |mut arguments: SpecArguments| async move {
            let _shares = arguments.option("share", crate::parse_share)?;
            let inner = arguments.device().await?;
            arguments.finish()?;
            Ok(inner)
        });
        let open = async |spec: &str| registry.open(spec, &OpenOptions::default()).await.map(|device| device.spec());
        assert_eq!(open("twice(twice(memory:4K),share=1%)").await.unwrap(), "memory:4K");
        for (spec, place, words) in [
            ("twice(twice(memory:4K),share=x)", "character 30", "not a share"),
            ("twice(memory:4K,rate=1)", "character 17", "known are share"),
            ("twice(memory:4K,share=1%,share=1%)", "character 26", "given twice"),
            ("twice(memory:4K,memory:8K)", "character 17", "no further device"),
            ("twice(share=1%)", "character 1", "needs a device"),
            ("twice(twice(memori:4K))", "character 13", "no device is named \"memori\""),
        ] {
            let error = open(spec).await.unwrap_err();
            assert!(error.detail.contains(place) && error.detail.contains(words), "{spec}: {error}");
        }
    }

    /// A constructor gets addresses and URLs as text; a device among them is an error with its position.
    #[tokio::test]
    async fn constructor_takes_texts_unchanged() {
        let mut registry = DeviceRegistry::with_builtins();
        registry.register("first", |mut arguments: SpecArguments| async move {
            let texts = arguments.texts()?;
            let size = arguments.option("size", crate::parse_size)?.unwrap_or(4096);
            arguments.finish()?;
            assert_eq!(texts, ["host:7070", "[::1]:7070;rack=a", "nbd+unix:///a?socket=/b,c"]);
            Ok(Arc::new(crate::MemoryDevice::new(size)) as SharedDevice)
        });
        let spec = "first(host:7070,[::1]:7070;rack=a,size=8K,\"nbd+unix:///a?socket=/b,c\")";
        let device = registry.open(spec, &OpenOptions::default()).await.unwrap();
        assert_eq!(device.geometry().size_bytes, 8192);
        let error = registry.open("first(memory:4K,stats(memory:4K))", &OpenOptions::default()).await.map(drop);
        let error = error.unwrap_err();
        assert!(error.detail.contains("character 17") && error.detail.contains("not the device stats"), "{error}");
    }
}
