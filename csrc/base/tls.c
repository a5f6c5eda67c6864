/* SPDX-License-Identifier: Apache-2.0 */
#include "base/tls.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/openssl.h"
#include "base/wait.h"

/* What the headers of OpenSSL 1.1.1 to 4 agree on. */
#define MODE 33
#define READ_AHEAD 41
#define SESSION_CACHE 44
#define MIN_VERSION 123
#define MAX_VERSION 124
#define PARTIAL_WRITE_MOVING_BUFFER_RELEASED 0x13
#define VERSION_1_3 0x0304
#define VERIFY_PEER 1
#define CTRL_FLUSH 11
#define RETRY_READ 0x09
#define RETRY_WRITE 0x0a
#define WANT_READ 2
#define WANT_WRITE 3
#define KEY_UPDATE 0
#define FIRST_BYTE_OF_ALERT 0x15
#define REASON(error) ((error) & 0xfff)
#define BINDER_DOES_NOT_VERIFY 253
/* Either tells a client that its binder is wrong. */
#define ALERT_ILLEGAL_PARAMETER 1047
#define ALERT_DECRYPT_ERROR 1051

#define SUITE "TLS_AES_128_GCM_SHA256"
#define IDENTITY "rdmatensor"
#define RECORD 16384u            /* bytes of clear text */
#define SEALED (RECORD + 256)    /* the most that one becomes, with a change of keys */
#define BATCH 8u                 /* records that are sent at once */
#define READ_BUFFER (4 * RECORD) /* received at once */
/* AES-GCM's key must change before 2^24.5 records (RFC 8446, section 5.5). */
#define RECORDS_PER_KEY (1u << 24)

typedef int (*find_session)(void *ssl, const unsigned char *identity, size_t size, void **session);
typedef int (*use_session)(void *ssl, const void *hash, const unsigned char **identity,
                           size_t *size, void **session);

/* FUNCTION(result, name, parameters) of libssl and of libcrypto. */
#define SSL_TABLE(FUNCTION)                                                                     \
  FUNCTION(const void *, TLS_method, (void))                                                    \
  FUNCTION(void *, SSL_CTX_new, (const void *method))                                           \
  FUNCTION(void, SSL_CTX_free, (void *context))                                                 \
  FUNCTION(long, SSL_CTX_ctrl, (void *context, int what, long value, void *pointer))            \
  FUNCTION(int, SSL_CTX_set_ciphersuites, (void *context, const char *names))                   \
  FUNCTION(int, SSL_CTX_set_num_tickets, (void *context, size_t number))                        \
  FUNCTION(void, SSL_CTX_set_default_read_buffer_len, (void *context, size_t size))             \
  FUNCTION(void, SSL_CTX_set_psk_find_session_callback, (void *context, find_session callback)) \
  FUNCTION(void, SSL_CTX_set_psk_use_session_callback, (void *context, use_session callback))   \
  FUNCTION(void *, SSL_new, (void *context))                                                    \
  FUNCTION(void, SSL_free, (void *ssl))                                                         \
  FUNCTION(void, SSL_set_bio, (void *ssl, void *in, void *out))                                 \
  FUNCTION(int, SSL_set_ex_data, (void *ssl, int index, void *data))                            \
  FUNCTION(void *, SSL_get_ex_data, (const void *ssl, int index))                               \
  FUNCTION(void, SSL_set_connect_state, (void *ssl))                                            \
  FUNCTION(void, SSL_set_accept_state, (void *ssl))                                             \
  FUNCTION(int, SSL_do_handshake, (void *ssl))                                                  \
  FUNCTION(void, SSL_set_verify, (void *ssl, int mode, void *callback))                         \
  FUNCTION(int, SSL_session_reused, (const void *ssl))                                          \
  FUNCTION(int, SSL_get_error, (const void *ssl, int result))                                   \
  FUNCTION(int, SSL_read, (void *ssl, void *data, int size))                                    \
  FUNCTION(int, SSL_write, (void *ssl, const void *data, int size))                             \
  FUNCTION(int, SSL_key_update, (void *ssl, int kind))                                          \
  FUNCTION(const void *, SSL_CIPHER_find, (void *ssl, const unsigned char *number))             \
  FUNCTION(void *, SSL_SESSION_new, (void))                                                     \
  FUNCTION(void, SSL_SESSION_free, (void *session))                                             \
  FUNCTION(int, SSL_SESSION_set1_master_key,                                                    \
           (void *session, const unsigned char *key, size_t size))                              \
  FUNCTION(int, SSL_SESSION_set_cipher, (void *session, const void *cipher))                    \
  FUNCTION(int, SSL_SESSION_set_protocol_version, (void *session, int version))
#define CRYPTO_TABLE(FUNCTION)                                                              \
  FUNCTION(void *, BIO_meth_new, (int type, const char *name))                              \
  FUNCTION(int, BIO_meth_set_write, (void *method, int (*call)(void *, const char *, int))) \
  FUNCTION(int, BIO_meth_set_read, (void *method, int (*call)(void *, char *, int)))        \
  FUNCTION(int, BIO_meth_set_ctrl, (void *method, long (*call)(void *, int, long, void *))) \
  FUNCTION(void *, BIO_new, (const void *method))                                           \
  FUNCTION(void, BIO_set_data, (void *bio, void *data))                                     \
  FUNCTION(void *, BIO_get_data, (void *bio))                                               \
  FUNCTION(void, BIO_set_init, (void *bio, int done))                                       \
  FUNCTION(void, BIO_set_flags, (void *bio, int flags))                                     \
  FUNCTION(void, BIO_clear_flags, (void *bio, int flags))                                   \
  FUNCTION(void, ERR_clear_error, (void))                                                   \
  FUNCTION(unsigned long, ERR_peek_error, (void))                                           \
  FUNCTION(void, ERR_error_string_n, (unsigned long error, char *text, size_t size))

static struct {
#define MEMBER(result, name, parameters) result(*name) parameters;
  SSL_TABLE(MEMBER) CRYPTO_TABLE(MEMBER)
#undef MEMBER
} ssl;

static void *context, *method;
static char load_error[320]; /* "" once loaded */
static pthread_once_t load_once = PTHREAD_ONCE_INIT;

struct rdt_tls {
  int socket;
  int error; /* errno of the last system call that failed; 0: none */
  void *session;
  pthread_mutex_t lock;
  uint32_t records; /* encrypted under this key */
  /* Encrypted bytes [begin, end) that were not sent, and the records that end there. */
  uint8_t *out;
  size_t begin, end;
  unsigned room, first,
      last; /* records that fit in `out`; those that are there are [first, last) */
  struct {
    size_t end, clear; /* its last byte in `out`; bytes of clear text */
  } sealed[BATCH];
  bool heard, clear; /* the peer said something; it began with clear text */
  bool shut;         /* nothing is taken from the socket; under the lock */
  atomic_bool dry;   /* the last receive found no whole record any more */
  uint8_t key[RDT_TLS_KEY_SIZE];
};

static int retry_or_fail(rdt_tls *tls, void *bio, int retry) {
  if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ENOMEM)
    ssl.BIO_set_flags(bio, retry);
  else
    tls->error = errno;
  return -1;
}

/* Once the connection is open, what is to be sent waits for others. */
static int write_bytes(void *bio, const char *data, int size) {
  rdt_tls *tls = ssl.BIO_get_data(bio);
  ssl.BIO_clear_flags(bio, RETRY_READ | RETRY_WRITE);
  if (tls->out && (size_t)size <= tls->room * (size_t)SEALED - tls->end) {
    memcpy(tls->out + tls->end, data, (size_t)size);
    tls->end += (size_t)size;
    return size;
  }
  if (tls->out) errno = EAGAIN;
  ssize_t done = tls->out ? -1 : send(tls->socket, data, (size_t)size, MSG_NOSIGNAL | MSG_DONTWAIT);
  return done >= 0 ? (int)done : retry_or_fail(tls, bio, RETRY_WRITE);
}

static int read_bytes(void *bio, char *data, int size) {
  rdt_tls *tls = ssl.BIO_get_data(bio);
  ssl.BIO_clear_flags(bio, RETRY_READ | RETRY_WRITE);
  errno = EAGAIN;
  ssize_t done = tls->shut ? -1 : recv(tls->socket, data, (size_t)size, MSG_DONTWAIT);
  if (done == 0) tls->error = ECONNRESET;
  if (done > 0 && !tls->heard)
    tls->clear = (uint8_t)*data != RDT_TLS_FIRST_BYTE && *data != FIRST_BYTE_OF_ALERT;
  tls->heard |= done > 0;
  return done >= 0 ? (int)done : retry_or_fail(tls, bio, RETRY_READ);
}

static long control_bytes(void *bio, int what, long value, void *pointer) {
  (void)bio, (void)value, (void)pointer;
  return what == CTRL_FLUSH;
}

/* Returns what libssl takes for an earlier session: the key. */
static void *make_session(void *connection) {
  static const unsigned char number[] = {0x13, 0x01}; /* of SUITE */
  const rdt_tls *tls = ssl.SSL_get_ex_data(connection, 0);
  const void *suite = ssl.SSL_CIPHER_find(connection, number);
  void *session = ssl.SSL_SESSION_new();
  if (session && suite && ssl.SSL_SESSION_set1_master_key(session, tls->key, sizeof(tls->key)) &&
      ssl.SSL_SESSION_set_cipher(session, suite) &&
      ssl.SSL_SESSION_set_protocol_version(session, VERSION_1_3))
    return session;
  if (session) ssl.SSL_SESSION_free(session);
  return NULL;
}

static int offer_key(void *connection, const void *hash, const unsigned char **identity,
                     size_t *size, void **session) {
  (void)hash;
  *identity = (const unsigned char *)IDENTITY;
  *size = strlen(IDENTITY);
  *session = make_session(connection);
  return *session != NULL;
}

static int find_key(void *connection, const unsigned char *identity, size_t size, void **session) {
  bool known = size == strlen(IDENTITY) && memcmp(identity, IDENTITY, size) == 0;
  *session = known ? make_session(connection) : NULL;
  return 1;
}

static bool find_all(void *libssl, void *libcrypto) {
#define FIND_SSL(result, name, parameters) rdt_openssl_find(libssl, #name, &ssl.name) &&
#define FIND_CRYPTO(result, name, parameters) rdt_openssl_find(libcrypto, #name, &ssl.name) &&
  return SSL_TABLE(FIND_SSL) CRYPTO_TABLE(FIND_CRYPTO) true;
#undef FIND_SSL
#undef FIND_CRYPTO
}

static bool make_method(void) {
  method = ssl.BIO_meth_new(0x0400 | 100, "rdmatensor");
  return method && ssl.BIO_meth_set_write(method, write_bytes) &&
         ssl.BIO_meth_set_read(method, read_bytes) && ssl.BIO_meth_set_ctrl(method, control_bytes);
}

/* A server without certificates and a client that accepts none end with the key, or not at all. Sessions
 * cannot be resumed. */
static bool make_context(void) {
  context = ssl.SSL_CTX_new(ssl.TLS_method());
  if (!context || !ssl.SSL_CTX_ctrl(context, MIN_VERSION, VERSION_1_3, NULL) ||
      !ssl.SSL_CTX_ctrl(context, MAX_VERSION, VERSION_1_3, NULL) ||
      !ssl.SSL_CTX_set_ciphersuites(context, SUITE) || !ssl.SSL_CTX_set_num_tickets(context, 0))
    return false;
  ssl.SSL_CTX_ctrl(context, MODE, PARTIAL_WRITE_MOVING_BUFFER_RELEASED, NULL);
  ssl.SSL_CTX_ctrl(context, SESSION_CACHE, 0, NULL);
  ssl.SSL_CTX_ctrl(context, READ_AHEAD, 1, NULL);
  ssl.SSL_CTX_set_default_read_buffer_len(context, READ_BUFFER);
  ssl.SSL_CTX_set_psk_use_session_callback(context, offer_key);
  ssl.SSL_CTX_set_psk_find_session_callback(context, find_key);
  return true;
}

/* Both libraries must be of one version, and call each other rather than functions of the same names. */
static void load(void) {
  static const char *const versions[] = {"3", "4", "1.1"};
  const char *why =
      "needs OpenSSL's libssl.so.3 or .4, which is not installed: apt install libssl3, "
      "dnf install openssl-libs";
  for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
    char name[32];
    snprintf(name, sizeof(name), "libcrypto.so.%s", versions[i]);
    void *libcrypto = rdt_openssl_open(name);
    snprintf(name, sizeof(name), "libssl.so.%s", versions[i]);
    void *libssl = libcrypto ? rdt_openssl_open(name) : NULL;
    if (!libssl) continue;
    if (!rdt_openssl_is_apart(libcrypto, NULL) || !rdt_openssl_is_apart(libssl, libcrypto))
      why =
          "cannot use OpenSSL in this process, where another library's functions of the same names "
          "took the "
          "place of its own: load rdmatensor before what opens libraries globally (RTLD_GLOBAL), "
          "such as "
          "TensorFlow";
    else if (find_all(libssl, libcrypto) && make_method() && make_context())
      return;
    else
      why = "needs an OpenSSL with TLS 1.3 and " SUITE;
  }
  snprintf(load_error, sizeof(load_error), "%sENCRYPT=on %s", RDT_ENV_PREFIX, why);
}

rdt_status rdt_tls_load(void) {
  pthread_once(&load_once, load);
  return load_error[0] ? rdt_fail(RDT_ERR_UNSUPPORTED, "%s", load_error) : RDT_OK;
}

static rdt_tls *create(int socket, bool connecting, const uint8_t key[RDT_TLS_KEY_SIZE]) {
  rdt_tls *tls = calloc(1, sizeof(*tls));
  if (!tls) return NULL;
  pthread_mutex_init(&tls->lock, NULL);
  tls->socket = socket;
  memcpy(tls->key, key, sizeof(tls->key));
  tls->session = ssl.SSL_new(context);
  void *bio = tls->session ? ssl.BIO_new(method) : NULL;
  if (!bio || !ssl.SSL_set_ex_data(tls->session, 0, tls)) {
    rdt_tls_free(tls);
    return NULL;
  }
  ssl.BIO_set_data(bio, tls);
  ssl.BIO_set_init(bio, 1);
  ssl.SSL_set_bio(tls->session, bio, bio);
  if (connecting) ssl.SSL_set_verify(tls->session, VERIFY_PEER, NULL);
  if (connecting)
    ssl.SSL_set_connect_state(tls->session);
  else
    ssl.SSL_set_accept_state(tls->session);
  return tls;
}

static rdt_status explain(const rdt_tls *tls) {
  char text[160];
  unsigned long error = ssl.ERR_peek_error(), reason = REASON(error);
  if (tls->clear)
    return rdt_fail(RDT_ERR_REFUSED,
                    "it talks in clear text, and this process has %sENCRYPT=on: set that there too",
                    RDT_ENV_PREFIX);
  if (tls->error)
    return rdt_fail(RDT_ERR_CONNECTION_LOST, "the peer closed the connection while TLS began");
  if (reason == ALERT_ILLEGAL_PARAMETER || reason == ALERT_DECRYPT_ERROR ||
      reason == BINDER_DOES_NOT_VERIFY)
    return rdt_fail(RDT_ERR_REFUSED,
                    "the other end does not have our secret: the files that %sSECRET_FILE names on "
                    "the two machines must be the same (compare with sha256sum)",
                    RDT_ENV_PREFIX);
  ssl.ERR_error_string_n(error, text, sizeof(text));
  return rdt_fail(RDT_ERR_REFUSED, "the other end does not begin TLS as this one does: %s", text);
}

static rdt_status shake_hands(rdt_tls *tls, rdt_deadline deadline) {
  rdt_status status = RDT_OK;
  while (status == RDT_OK) {
    ssl.ERR_clear_error();
    int result = ssl.SSL_do_handshake(tls->session);
    if (result == 1) break;
    int wanted = ssl.SSL_get_error(tls->session, result);
    if (wanted == WANT_READ)
      status = rdt_wait_ready(tls->socket, POLLIN, deadline, "receiving");
    else if (wanted == WANT_WRITE)
      status = rdt_wait_ready(tls->socket, POLLOUT, deadline, "sending");
    else
      status = explain(tls);
  }
  if (status != RDT_OK || ssl.SSL_session_reused(tls->session)) return status;
  return rdt_fail(RDT_ERR_REFUSED, "the peer began TLS without our secret");
}

/* So many records fit in `out` then. */
static bool make_room(rdt_tls *tls, unsigned records) {
  uint8_t *out = records > tls->room ? realloc(tls->out, records * (size_t)SEALED) : tls->out;
  if (!out) return false;
  tls->out = out;
  if (tls->room < records) tls->room = records;
  return true;
}

rdt_status rdt_tls_open(int socket, bool connecting, const uint8_t key[RDT_TLS_KEY_SIZE],
                        rdt_deadline deadline, rdt_tls **tls_out) {
  rdt_tls *tls = create(socket, connecting, key);
  if (!tls) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = shake_hands(tls, deadline);
  if (status == RDT_OK && !make_room(tls, 1))
    status = rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  ssl.ERR_clear_error();
  explicit_bzero(tls->key, sizeof(tls->key));
  if (status == RDT_OK)
    *tls_out = tls;
  else
    rdt_tls_free(tls);
  return status;
}

void rdt_tls_free(rdt_tls *tls) {
  if (!tls) return;
  if (tls->session) ssl.SSL_free(tls->session);
  explicit_bzero(tls->key, sizeof(tls->key));
  pthread_mutex_destroy(&tls->lock);
  free(tls->out);
  free(tls);
}

/* Returns 0 if the socket is to blame for no progress, else -1 with errno. */
static int no_progress(rdt_tls *tls, int result) {
  int wanted = ssl.SSL_get_error(tls->session, result);
  if (wanted == WANT_READ || wanted == WANT_WRITE) return 0;
  ssl.ERR_clear_error();
  errno = tls->error ? tls->error : EBADMSG;
  return -1;
}

/* Where reading of the parts has come to. */
typedef struct place_in {
  const struct iovec *parts;
  int count;
  size_t at; /* in the first part */
} place_in;

static void advance(place_in *from, size_t size) {
  for (from->at += size; from->count > 0 && from->at >= from->parts->iov_len;
       from->parts++, from->count--)
    from->at -= from->parts->iov_len;
}

/* Returns the next record's bytes: in their place, or gathered in `room`. */
static const uint8_t *next_record(place_in from, uint8_t room[RECORD], size_t *size) {
  const uint8_t *start = (const uint8_t *)from.parts->iov_base + from.at;
  *size = from.parts->iov_len - from.at;
  if (*size > RECORD) *size = RECORD;
  if (*size == RECORD || from.count == 1) return start;
  for (*size = 0; from.count > 0 && *size < RECORD;) {
    size_t part = from.parts->iov_len - from.at;
    if (part > RECORD - *size) part = RECORD - *size;
    memcpy(room + *size, (const uint8_t *)from.parts->iov_base + from.at, part);
    *size += part;
    advance(&from, part);
  }
  return room;
}

/* Encrypts records until there is no room for another one. False if the connection failed. */
static bool seal(rdt_tls *tls, place_in *from) {
  uint8_t room[RECORD];
  while (from->count > 0 && tls->last < tls->room) {
    size_t size;
    const uint8_t *record = next_record(*from, room, &size);
    if (tls->records >= RECORDS_PER_KEY && ssl.SSL_key_update(tls->session, KEY_UPDATE))
      tls->records = 0;
    int done = ssl.SSL_write(tls->session, record, (int)size);
    if (done <= 0) return no_progress(tls, done) == 0;
    tls->records++;
    tls->sealed[tls->last].end = tls->end;
    tls->sealed[tls->last++].clear = (size_t)done;
    advance(from, (size_t)done);
  }
  return true;
}

/* Sends what is encrypted, as far as the socket takes it. Returns the bytes of clear text in the records that are
 * gone; the peer can read no other. */
static size_t send_sealed(rdt_tls *tls, int flags) {
  size_t clear = 0;
  while (tls->begin < tls->end) {
    ssize_t done = send(tls->socket, tls->out + tls->begin, tls->end - tls->begin,
                        MSG_NOSIGNAL | MSG_DONTWAIT | flags);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno != EAGAIN && errno != ENOBUFS && errno != ENOMEM) tls->error = errno;
    if (done < 0) break;
    tls->begin += (size_t)done;
  }
  while (tls->first < tls->last && tls->sealed[tls->first].end <= tls->begin)
    clear += tls->sealed[tls->first++].clear;
  if (tls->begin == tls->end) tls->begin = tls->end = tls->first = tls->last = 0;
  return clear;
}

ssize_t rdt_tls_send(rdt_tls *tls, const struct iovec *parts, int count) {
  place_in from = {.parts = parts, .count = count};
  size_t total = 0, gone;
  bool usable = true;
  pthread_mutex_lock(&tls->lock);
  ssl.ERR_clear_error();
  advance(&from, 0);
  /* What an earlier call encrypted, and could not send, is what this one begins with. */
  for (unsigned i = tls->first; i < tls->last; i++) advance(&from, tls->sealed[i].clear);
  if (from.count > 1 || (from.count == 1 && from.parts->iov_len > RECORD)) make_room(tls, BATCH);
  do {
    if (tls->end == 0) usable = seal(tls, &from);
    gone = send_sealed(tls, from.count > 0 ? MSG_MORE : 0);
    total += gone;
  } while (usable && gone > 0 && from.count > 0 && tls->end == 0);
  int error = tls->error ? tls->error : EBADMSG;
  bool failed = total == 0 && (!usable || tls->error);
  pthread_mutex_unlock(&tls->lock);
  if (failed) errno = error;
  return failed ? -1 : (ssize_t)total;
}

static ssize_t receive(rdt_tls *tls, const struct iovec *parts, int count, bool shut) {
  place_in to = {.parts = parts, .count = count};
  ssize_t total = 0;
  int done = 1;
  pthread_mutex_lock(&tls->lock);
  tls->shut = shut;
  ssl.ERR_clear_error();
  for (advance(&to, 0); to.count > 0 && done > 0;) {
    size_t room = to.parts->iov_len - to.at;
    done = ssl.SSL_read(tls->session, (uint8_t *)to.parts->iov_base + to.at,
                        room > INT32_MAX ? INT32_MAX : (int)room);
    if (done <= 0) break;
    total += done;
    advance(&to, (size_t)done);
  }
  atomic_store(&tls->dry, done <= 0);
  if (done <= 0 && total == 0) total = no_progress(tls, done);
  tls->shut = false;
  int error = errno;
  pthread_mutex_unlock(&tls->lock);
  errno = error;
  return total;
}

ssize_t rdt_tls_receive(rdt_tls *tls, const struct iovec *parts, int count) {
  return receive(tls, parts, count, false);
}

ssize_t rdt_tls_receive_held(rdt_tls *tls, const struct iovec *parts, int count) {
  return receive(tls, parts, count, true);
}

bool rdt_tls_holds(const rdt_tls *tls) { return !atomic_load(&tls->dry); }
