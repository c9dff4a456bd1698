//! Generates the messages, clients and services of `proto/` without tools outside Cargo, and the
//! table of [`decoded`](src/decoded.rs).

use protox::prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use protox::prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::path::Path;

const FILES: [&str; 10] = [
    "metapb.proto",
    "errorpb.proto",
    "kvrpcpb.proto",
    "tikvpb.proto",
    "pdpb.proto",
    "meta_storagepb.proto",
    "keyspacepb.proto",
    "stele/control/v1/control.proto",
    "stele/kv/v1/kv.proto",
    "stele/redis/v1/redis.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let table = Shapes::new(&descriptors).table(&descriptors)?;
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("shapes.rs"), table)?;
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::SizedCodec")
        .extern_path(".kvrpcpb.RawScanResponse", "crate::ScanResponse")
        .extern_path(".kvrpcpb.RawBatchScanResponse", "crate::ScanResponse")
        .include_file("mod.rs")
        .compile_fds(descriptors)?;
    Ok(())
}

struct Shapes<'a> {
    messages: BTreeMap<String, &'a DescriptorProto>,
    listed: Vec<String>,
}

impl<'a> Shapes<'a> {
    fn new(descriptors: &'a FileDescriptorSet) -> Self {
        let mut messages = BTreeMap::new();
        for file in &descriptors.file {
            add_messages(&format!(".{}", file.package()), &file.message_type, &mut messages);
        }
        Self { messages, listed: Vec::new() }
    }

    /// Returns the source of the table: all methods by path, and what their requests consist of.
    fn table(mut self, descriptors: &FileDescriptorSet) -> Result<String, Box<dyn Error>> {
        let mut methods = BTreeMap::new();
        for file in &descriptors.file {
            self.add_methods(file, &mut methods);
        }
        let mut out = String::from("static METHODS: &[Method] = &[\n");
        for (path, (input, is_stream)) in methods {
            writeln!(out, "Method {{ path: {path:?}, input: {input}, is_stream: {is_stream} }},")?;
        }
        out.push_str("];\nstatic SHAPES: &[&[Field]] = &[\n");
        let mut at = 0;
        // Fields add the messages that they hold.
        while let Some(name) = self.listed.get(at).cloned() {
            let fields = self.messages.get(&name).ok_or("a message is missing")?.field.clone();
            writeln!(out, "// {name}\n&[")?;
            for field in &fields {
                if let Some(kind) = self.kind(field) {
                    writeln!(out, "Field {{ tag: {}, kind: {kind} }},", field.number())?;
                }
            }
            out.push_str("],\n");
            at += 1;
        }
        out.push_str("];\n");
        Ok(out)
    }

    fn add_methods(
        &mut self,
        file: &FileDescriptorProto,
        methods: &mut BTreeMap<String, (usize, bool)>,
    ) {
        for service in &file.service {
            for method in &service.method {
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                let input = self.list(method.input_type());
                methods.insert(path, (input, method.client_streaming()));
            }
        }
    }

    fn list(&mut self, name: &str) -> usize {
        self.listed.iter().position(|listed| listed == name).unwrap_or_else(|| {
            self.listed.push(name.to_owned());
            self.listed.len() - 1
        })
    }

    /// Returns the kind of a field that needs memory beside that of its message and of its own bytes.
    fn kind(&mut self, field: &FieldDescriptorProto) -> Option<String> {
        let is_repeated = field.label() == Label::Repeated;
        Some(match (field.r#type(), is_repeated) {
            (Type::Message, false) => format!("Kind::Message({})", self.list(field.type_name())),
            (Type::Message, true) => {
                let bytes = self.message_bytes(field.type_name(), 0);
                format!(
                    "Kind::Messages {{ bytes: {bytes}, shape: {} }}",
                    self.list(field.type_name())
                )
            }
            (Type::String, false) => "Kind::Text".to_owned(),
            (Type::String, true) => "Kind::Texts".to_owned(),
            (Type::Bytes, true) => "Kind::Strings".to_owned(),
            (Type::Bytes, false) => return None,
            (_, true) => "Kind::Numbers".to_owned(),
            (_, false) => return None,
        })
    }

    /// Returns an upper limit of the bytes of a message's struct.
    fn message_bytes(&self, name: &str, depth: u32) -> usize {
        // A message that contains itself is behind a pointer.
        let Some(message) = self.messages.get(name).filter(|_| depth < 16) else { return 8 };
        let mut oneofs: BTreeMap<i32, usize> = BTreeMap::new();
        let mut bytes = 0;
        for field in &message.field {
            let field_bytes = self.field_bytes(field, depth);
            match field.oneof_index {
                Some(oneof) => {
                    let largest = oneofs.entry(oneof).or_default();
                    *largest = field_bytes.max(*largest);
                }
                None => bytes += field_bytes,
            }
        }
        bytes + oneofs.values().map(|largest| largest + 8).sum::<usize>()
    }

    fn field_bytes(&self, field: &FieldDescriptorProto, depth: u32) -> usize {
        if field.label() == Label::Repeated {
            // A map is larger than a vector.
            return 48;
        }
        match field.r#type() {
            Type::Message => self.message_bytes(field.type_name(), depth + 1) + 8,
            Type::String => 24,
            Type::Bytes => 32,
            _ => 8,
        }
    }
}

fn add_messages<'a>(
    parent: &str,
    messages: &'a [DescriptorProto],
    into: &mut BTreeMap<String, &'a DescriptorProto>,
) {
    for message in messages {
        let name = format!("{parent}.{}", message.name());
        add_messages(&name, &message.nested_type, into);
        into.insert(name, message);
    }
}
