//! The few messages of TensorBoard that are written, with the numbers of their fields.

use prost::Message;

/// `tensorboard.Event`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// In seconds.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    // The rest are cases of one `oneof`, of which one is set.
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

/// `tensorboard.SessionLog`.
#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    /// `SessionStatus`.
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `SessionStatus.START`: earlier records of this step and later ones count no more.
const START: i32 = 1;

/// `tensorboard.Summary`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

/// `tensorboard.Summary.Value`.
#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(message, optional, tag = "8")]
    tensor: Option<Tensor>,
    #[prost(message, optional, tag = "9")]
    metadata: Option<Metadata>,
}

/// `tensorboard.TensorProto`.
#[derive(Clone, PartialEq, Message)]
struct Tensor {
    /// `DataType`.
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
    #[prost(float, repeated, tag = "5")]
    float_val: Vec<f32>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    string_val: Vec<Vec<u8>>,
}

/// `DataType.DT_FLOAT`: TensorBoard's data server shows no scalars of another type.
const FLOAT: i32 = 1;
/// `DataType.DT_STRING`.
const STRING: i32 = 7;

/// `tensorboard.TensorShapeProto`, of no dim.
#[derive(Clone, PartialEq, Message)]
struct Shape {}

/// `tensorboard.SummaryMetadata`.
#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(message, optional, tag = "1")]
    plugin_data: Option<PluginData>,
    /// `DataClass`.
    #[prost(int32, tag = "4")]
    data_class: i32,
}

/// `DataClass.DATA_CLASS_SCALAR`.
const SCALAR: i32 = 1;
/// `DataClass.DATA_CLASS_TENSOR`.
const TENSOR: i32 = 2;

/// `tensorboard.SummaryMetadata.PluginData`.
#[derive(Clone, PartialEq, Message)]
struct PluginData {
    #[prost(string, tag = "1")]
    plugin_name: String,
}

/// The content of an event.
pub(super) enum Content {
    /// The form of the file.
    Version(String),
    /// The run begins, or goes on, with the event's step.
    Start,
    /// Figures, or a text.
    Summary(Summary),
}

/// Makes an event.
pub(super) fn event(time_unix_ms: u64, step: u64, content: Content) -> Event {
    let event = Event {
        wall_time: time_unix_ms as f64 / 1e3,
        step: i64::try_from(step).unwrap_or(i64::MAX),
        ..Event::default()
    };
    match content {
        Content::Version(version) => Event {
            step: 0,
            file_version: Some(version),
            ..event
        },
        Content::Start => Event {
            session_log: Some(SessionLog { status: START }),
            ..event
        },
        Content::Summary(summary) => Event {
            summary: Some(summary),
            ..event
        },
    }
}

/// Makes a summary of figures.
pub(super) fn scalars<'a>(values: impl Iterator<Item = (&'a str, f64)>) -> Summary {
    let value = |(name, value): (&str, f64)| {
        let tensor = Tensor {
            dtype: FLOAT,
            shape: Some(Shape {}),
            float_val: vec![value as f32],
            ..Tensor::default()
        };
        of_plugin(name.to_string(), tensor, ("scalars", SCALAR))
    };
    Summary {
        value: values.map(value).collect(),
    }
}

/// Makes a summary of a text, in Markdown.
pub(super) fn text(name: &str, text: &str) -> Summary {
    let tensor = Tensor {
        dtype: STRING,
        shape: Some(Shape {}),
        string_val: vec![text.as_bytes().to_vec()],
        ..Tensor::default()
    };
    // The plugin's own ending of names.
    let tag = format!("{name}/text_summary");
    Summary {
        value: vec![of_plugin(tag, tensor, ("text", TENSOR))],
    }
}

/// A value that a plugin of TensorBoard shows.
fn of_plugin(tag: String, tensor: Tensor, (plugin, data_class): (&str, i32)) -> Value {
    Value {
        tag,
        tensor: Some(tensor),
        metadata: Some(Metadata {
            plugin_data: Some(PluginData {
                plugin_name: plugin.to_string(),
            }),
            data_class,
        }),
    }
}
