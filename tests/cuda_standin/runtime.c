// A CUDA runtime library and the driver's functions that gflow calls, without a GPU: memory of the
// device is the host's, copies happen at once, and launches, of single kernels and of graphs, are
// told to a Python function (standin.py), which interprets gflow's and counts PyTorch's own.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#undef cudaGetDeviceProperties
#undef cudaEventRecordWithFlags
#undef cudaStreamGetCaptureInfo
#undef cuCtxSetCurrent
#undef cuStreamGetCaptureInfo_v2

typedef void (*LaunchTold)(void *function, unsigned x, unsigned y, unsigned z, void **parameters);
typedef void (*GraphTold)(long graph);
typedef void (*CopyTold)(void *to, const void *from, size_t size, int value);
typedef void (*OwnTold)(const char *name, void **arguments);

static LaunchTold launch_told;
static GraphTold graph_told;
static CopyTold copy_told;
static OwnTold own_told;
static long capturing, captures; // number of the graph that is being captured; 0: none

void standin_tell(LaunchTold launch, GraphTold graph, CopyTold copy, OwnTold own) {
  launch_told = launch, graph_told = graph, copy_told = copy, own_told = own;
}
long standin_capturing(void) { return capturing; }

// A kernel and its parameters' sizes, which Python tells, as code has them on a GPU.
enum { MOST = 4096, GRAPHS = 1 << 16 };
struct function { char *name; int count, sizes[MOST]; };
// A node of a captured graph: a launch with a copy of its arguments, and the copy that the instantiated graph has.
struct node {
  CUgraphNodeType type;
  long graph;
  CUDA_KERNEL_NODE_PARAMS launch;
  long long words[MOST], instantiated[MOST];
  void *at[MOST], *instantiated_at[MOST];
};
static struct node other = {.type = CU_GRAPH_NODE_TYPE_MEMCPY}; // what is captured and is no launch of gflow's
static CUgraphNode latest;                                      // the node that the next one depends on
static char destroyed[GRAPHS];
static long updates;
long standin_updates(void) { return updates; }
void standin_parameters(struct function *f, int count, const int *sizes) {
  f->count = count;
  memcpy(f->sizes, sizes, count * sizeof *sizes);
}

#define OK(name, ...) \
  cudaError_t name(__VA_ARGS__) { return cudaSuccess; }

// ---- devices
cudaError_t cudaGetDeviceCount(int *n) { *n = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *n) { *n = 0; return cudaSuccess; }
OK(cudaSetDevice, int n)
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr what, int device) {
  *value = what == cudaDevAttrComputeCapabilityMajor ? 9
           : what == cudaDevAttrMultiProcessorCount  ? 132
           : what == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 232448 : 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "stand-in");
  p->major = 9, p->minor = 0, p->multiProcessorCount = 132, p->warpSize = 32;
  p->totalGlobalMem = 16ull << 30, p->sharedMemPerBlock = 49152, p->sharedMemPerBlockOptin = 232448;
  p->maxThreadsPerBlock = 1024, p->maxThreadsPerMultiProcessor = 2048, p->regsPerMultiprocessor = 65536;
  p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->l2CacheSize = 50 << 20;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = 0; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0, *greatest = -1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device) { snprintf(id, size, "0:0:0"); return cudaSuccess; }
OK(cudaDeviceSynchronize, void)
OK(cudaGetLastError, void)
OK(cudaPeekAtLastError, void)
const char *cudaGetErrorName(cudaError_t e) { return "cudaStandIn"; }
const char *cudaGetErrorString(cudaError_t e) { return "the stand-in of the CUDA runtime does not do this"; }

// ---- memory
cudaError_t cudaMalloc(void **p, size_t size) {
  if (posix_memalign(p, 512, size ? size : 1)) return cudaErrorMemoryAllocation;
  memset(*p, 0, size);
  return cudaSuccess;
}
cudaError_t cudaFree(void *p) { return cudaSuccess; } // graphs may have it still: PyTorch's cache is off
cudaError_t cudaHostAlloc(void **p, size_t size, unsigned flags) { return cudaMalloc(p, size); }
cudaError_t cudaFreeHost(void *p) { free(p); return cudaSuccess; }
OK(cudaHostRegister, void *p, size_t size, unsigned flags)
OK(cudaHostUnregister, void *p)
cudaError_t cudaMemGetInfo(size_t *left, size_t *all) { *left = *all = 16ull << 30; return cudaSuccess; }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a);
  a->type = cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
static cudaError_t copy(void *to, const void *from, size_t size) {
  if (capturing) latest = (CUgraphNode)&other;
  if (capturing && copy_told) copy_told(to, from, size, 0);
  else memmove(to, from, size);
  return cudaSuccess;
}
static cudaError_t fill(void *to, int value, size_t size) {
  if (capturing) latest = (CUgraphNode)&other;
  if (capturing && copy_told) copy_told(to, NULL, size, value);
  else memset(to, value, size);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind k) { return copy(to, from, n); }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind k, cudaStream_t s) { return copy(to, from, n); }
cudaError_t cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t n, cudaStream_t s) { return copy(to, from, n); }
cudaError_t cudaMemset(void *to, int value, size_t n) { return fill(to, value, n); }
cudaError_t cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t s) { return fill(to, value, n); }
OK(cudaMemcpyToSymbol, const void *symbol, const void *from, size_t n, size_t offset, enum cudaMemcpyKind k)

// ---- streams and events
static long handles = 1024; // as pointers, even: PyTorch marks its own streams by the lowest bit
cudaError_t cudaStreamCreate(cudaStream_t *s) { *s = (cudaStream_t)(handles += 16); return cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) { return cudaStreamCreate(s); }
OK(cudaStreamDestroy, cudaStream_t s)
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) { *priority = 0; return cudaSuccess; }
OK(cudaStreamQuery, cudaStream_t s)
OK(cudaStreamSynchronize, cudaStream_t s)
OK(cudaStreamWaitEvent, cudaStream_t s, cudaEvent_t e, unsigned flags)
OK(cudaStreamAddCallback, cudaStream_t s, cudaStreamCallback_t f, void *data, unsigned flags)
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *data) { f(data); return cudaSuccess; }
// an event is the moment at which it was recorded: what was begun before is done
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e3 * t.tv_sec + 1e-6 * t.tv_nsec;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { *e = calloc(1, sizeof(double)); return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) { return cudaEventCreate(e); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { free(e); return cudaSuccess; }
OK(cudaEventQuery, cudaEvent_t e)
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { *(double *)e = now(); return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags) { return cudaEventRecord(e, s); }
OK(cudaEventSynchronize, cudaEvent_t e)
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
  *ms = *(double *)b - *(double *)a;
  return cudaSuccess;
}

// ---- graphs: numbered; what they hold is Python's business
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
  capturing = ++captures;
  latest = NULL;
  return captures < GRAPHS ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
  *graph = (cudaGraph_t)capturing;
  capturing = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **needs, const cudaGraphEdgeData **edges, size_t *n) {
  cudaStreamIsCapturing(s, status);
  if (id) *id = capturing;
  if (graph) *graph = (cudaGraph_t)capturing;
  if (needs) *needs = NULL;
  if (edges) *edges = NULL;
  if (n) *n = 0;
  return cudaSuccess;
}
OK(cudaThreadExchangeStreamCaptureMode, enum cudaStreamCaptureMode *mode)
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
  *exec = (cudaGraphExec_t)graph;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
  if (graph_told) graph_told((long)exec);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { destroyed[(long)graph] = 1; return cudaSuccess; }
OK(cudaGraphExecDestroy, cudaGraphExec_t exec)
OK(cudaGraphDebugDotPrint, cudaGraph_t graph, const char *path, unsigned flags)
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n) { *n = 1; return cudaSuccess; }

// ---- PyTorch's own kernels: named, not run
static struct { const void *host; const char *name; } own[1 << 18];
static unsigned owned;
void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterVar(void **h, char *v, char *a, const char *n, int e, size_t s, int c, int g) {}
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit,
                            void *a, void *b, void *c, void *d, int *e) {
  if (owned < sizeof own / sizeof *own) own[owned].host = host, own[owned++].name = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) { return cudaSuccess; }
static cudaError_t run_own(const void *host, void **args) {
  if (capturing) latest = (CUgraphNode)&other;
  for (unsigned i = 0; own_told && i < owned; i++)
    if (own[i].host == host) { own_told(own[i].name, args); break; }
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) { *kernel = (cudaKernel_t)host; return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s) { return run_own(kernel, args); }
cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s) { return run_own(host, args); }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **args) { return run_own(host, args); }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *host) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024, a->numRegs = 32;
  return cudaSuccess;
}
OK(cudaFuncSetAttribute, const void *host, enum cudaFuncAttribute what, int value)
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *host, int threads, size_t shared, unsigned flags) { *n = 2; return cudaSuccess; }

// ---- the driver
#define DRIVER(name, ...) \
  CUresult name(__VA_ARGS__) { return CUDA_SUCCESS; }
DRIVER(cuInit, unsigned flags)
CUresult cuDeviceGet(CUdevice *device, int index) { *device = index; return CUDA_SUCCESS; }
static CUcontext context;
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) { *flags = 0, *active = 1; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice device) { *c = (CUcontext)1; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *c) { *c = context; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext c) { context = c; return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  // an ELF file for NVIDIA's machines
  if (memcmp(image, "\177ELF", 4) || ((const unsigned short *)image)[9] != 190) return CUDA_ERROR_INVALID_IMAGE;
  *module = (CUmodule)(handles += 16);
  return CUDA_SUCCESS;
}
DRIVER(cuModuleUnload, CUmodule module)
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  struct function *f = calloc(1, sizeof *f);
  f->name = strdup(name);
  *function = (CUfunction)f;
  return CUDA_SUCCESS;
}
DRIVER(cuFuncSetAttribute, CUfunction function, CUfunction_attribute what, int value)
CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty,
                        unsigned tz, unsigned shared, CUstream stream, void **parameters, void **extra) {
  if (!x || !y || !z || y > 65535 || z > 65535) return CUDA_ERROR_INVALID_VALUE;
  if (shared > 232448 || tx > 1024) return CUDA_ERROR_INVALID_VALUE;
  if (capturing) {
    struct function *f = (struct function *)function;
    struct node *node = calloc(1, sizeof *node);
    node->type = CU_GRAPH_NODE_TYPE_KERNEL, node->graph = capturing;
    for (int i = 0; i < f->count; i++) {
      memcpy(&node->words[i], parameters[i], f->sizes[i]);
      node->instantiated[i] = node->words[i];
      node->at[i] = &node->words[i], node->instantiated_at[i] = &node->instantiated[i];
    }
    CUDA_KERNEL_NODE_PARAMS launch = {function, x, y, z, tx, ty, tz, shared, node->at};
    node->launch = launch;
    latest = (CUgraphNode)node, parameters = node->instantiated_at;
  }
  if (launch_told) launch_told(function, x, y, z, parameters);
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCaptureInfo_v2(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **needs, size_t *n) {
  *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  *needs = &latest, *n = capturing && latest != NULL;
  return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
  *type = ((struct node *)node)->type;
  return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *launch) {
  if (((struct node *)node)->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
  *launch = ((struct node *)node)->launch;
  return CUDA_SUCCESS;
}
// The node is one of the graph that was instantiated, which still exists; the instantiated graph copies the arguments.
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *launch) {
  struct node *node = (struct node *)n;
  const CUDA_KERNEL_NODE_PARAMS *was = &node->launch;
  if (node->type != CU_GRAPH_NODE_TYPE_KERNEL || node->graph != (long)exec || destroyed[node->graph])
    return CUDA_ERROR_INVALID_VALUE;
  if (launch->func != was->func || launch->gridDimX != was->gridDimX || launch->gridDimY != was->gridDimY ||
      launch->gridDimZ != was->gridDimZ || launch->blockDimX != was->blockDimX || launch->blockDimY != 1 ||
      launch->blockDimZ != 1 || launch->sharedMemBytes != was->sharedMemBytes || launch->extra)
    return CUDA_ERROR_INVALID_VALUE;
  struct function *f = (struct function *)launch->func;
  for (int i = 0; i < f->count; i++) memcpy(&node->instantiated[i], launch->kernelParams[i], f->sizes[i]);
  updates++;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult e, const char **text) { *text = "CUDA_STAND_IN"; return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult e, const char **text) { *text = "refused by the stand-in"; return CUDA_SUCCESS; }
