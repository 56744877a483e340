// Compiled by a test: the declarations of ours against XLA's own header, as the jaxlib that is installed ships it.
#include "xla/ffi/api/c_api.h"

extern "C" {
#include "drivers/xla.h"
}

#define SAME(mine, my_field, theirs, their_field)                                                                                             \
    static_assert(offsetof(mine, my_field) == offsetof(theirs, their_field), #mine "." #my_field);                                            \
    static_assert(sizeof(mine::my_field) == sizeof(theirs::their_field), #mine "." #my_field)

#define EQUAL(mine, theirs) static_assert(static_cast<int>(mine) == static_cast<int>(theirs), #mine)

EQUAL(XLA_MAJOR, XLA_FFI_API_MAJOR);
static_assert(XLA_FFI_API_MINOR >= XLA_MINOR, "the minor version");
EQUAL(XLA_ASKS_ABOUT_HANDLER, XLA_FFI_Extension_Metadata);
EQUAL(XLA_INITIALIZE, XLA_FFI_ExecutionStage_INITIALIZE);
EQUAL(XLA_EXECUTE, XLA_FFI_ExecutionStage_EXECUTE);
EQUAL(XLA_INVALID_ARGUMENT, XLA_FFI_Error_Code_INVALID_ARGUMENT);
EQUAL(XLA_INTERNAL, XLA_FFI_Error_Code_INTERNAL);
EQUAL(XLA_BUFFER, XLA_FFI_ArgType_BUFFER);
EQUAL(XLA_BUFFER, XLA_FFI_RetType_BUFFER);
EQUAL(XLA_STRING, XLA_FFI_AttrType_STRING);
EQUAL(XLA_COMMAND_BUFFER_COMPATIBLE, XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);

SAME(xla_extension, kind, XLA_FFI_Extension_Base, type);
SAME(xla_extension, next, XLA_FFI_Extension_Base, next);
SAME(xla_version, major, XLA_FFI_Api_Version, major_version);
SAME(xla_version, minor, XLA_FFI_Api_Version, minor_version);
static_assert(sizeof(xla_version) == sizeof(XLA_FFI_Api_Version), "xla_version");
SAME(xla_metadata, version, XLA_FFI_Metadata, api_version);
SAME(xla_metadata, traits, XLA_FFI_Metadata, traits);
SAME(xla_metadata_extension, metadata, XLA_FFI_Metadata_Extension, metadata);
SAME(xla_text, start, XLA_FFI_ByteSpan, ptr);
SAME(xla_text, length, XLA_FFI_ByteSpan, len);
SAME(xla_buffer, dtype, XLA_FFI_Buffer, dtype);
SAME(xla_buffer, data, XLA_FFI_Buffer, data);
SAME(xla_buffer, rank, XLA_FFI_Buffer, rank);
SAME(xla_buffer, dims, XLA_FFI_Buffer, dims);
SAME(xla_buffers, count, XLA_FFI_Args, size);
SAME(xla_buffers, kinds, XLA_FFI_Args, types);
SAME(xla_buffers, parts, XLA_FFI_Args, args);
SAME(xla_buffers, count, XLA_FFI_Rets, size);
SAME(xla_buffers, kinds, XLA_FFI_Rets, types);
SAME(xla_buffers, parts, XLA_FFI_Rets, rets);
SAME(xla_attributes, count, XLA_FFI_Attrs, size);
SAME(xla_attributes, kinds, XLA_FFI_Attrs, types);
SAME(xla_attributes, names, XLA_FFI_Attrs, names);
SAME(xla_attributes, parts, XLA_FFI_Attrs, attrs);
SAME(xla_frame, extension, XLA_FFI_CallFrame, extension_start);
SAME(xla_frame, api, XLA_FFI_CallFrame, api);
SAME(xla_frame, context, XLA_FFI_CallFrame, ctx);
SAME(xla_frame, stage, XLA_FFI_CallFrame, stage);
SAME(xla_frame, arguments, XLA_FFI_CallFrame, args);
SAME(xla_frame, results, XLA_FFI_CallFrame, rets);
SAME(xla_frame, attributes, XLA_FFI_CallFrame, attrs);
SAME(xla_error_arguments, message, XLA_FFI_Error_Create_Args, message);
SAME(xla_error_arguments, code, XLA_FFI_Error_Create_Args, errc);
SAME(xla_stream_arguments, context, XLA_FFI_Stream_Get_Args, ctx);
SAME(xla_stream_arguments, stream, XLA_FFI_Stream_Get_Args, stream);
SAME(xla_device_arguments, context, XLA_FFI_DeviceOrdinal_Get_Args, ctx);
SAME(xla_device_arguments, ordinal, XLA_FFI_DeviceOrdinal_Get_Args, device_ordinal);
SAME(xla_api, version, XLA_FFI_Api, api_version);
SAME(xla_api, error_create, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME(xla_api, stream_get, XLA_FFI_Api, XLA_FFI_Stream_Get);
SAME(xla_api, device_ordinal_get, XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get);
