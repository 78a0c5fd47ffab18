/* Sends 64 bytes on each of some sockets and waits for their echo, again and again, with epoll: what
 * a native client of one thread costs. Prints the number of echoes.
 *
 *     echo_client tcp|udp PORT SOCKETS SECONDS
 */

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SIZE 64

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    int is_tcp = strcmp(argv[1], "tcp") == 0;
    int sockets = atoi(argv[3]);
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    char data[SIZE], answer[4096];
    memset(data, 'x', SIZE);
    int poll = epoll_create1(0);
    int *received = calloc(65536, sizeof(int));
    for (int i = 0; i < sockets; i++) {
        int fd = socket(AF_INET, is_tcp ? SOCK_STREAM : SOCK_DGRAM, 0);
        if (connect(fd, (struct sockaddr *)&where, sizeof where) != 0)
            return 1;
        int one = 1;
        if (is_tcp)
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
        if (write(fd, data, SIZE) != SIZE)
            return 1;
    }
    long echoes = 0;
    double end = now() + atof(argv[4]);
    struct epoll_event events[256];
    while (now() < end) {
        int count = epoll_wait(poll, events, 256, 1000);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            ssize_t size = read(fd, answer, sizeof answer);
            if (size <= 0)
                return 1;
            received[fd] += size;
            if (received[fd] < SIZE)
                continue;
            received[fd] = 0;
            echoes++;
            if (write(fd, data, SIZE) != SIZE)
                return 1;
        }
    }
    printf("%ld\n", echoes);
    return 0;
}
