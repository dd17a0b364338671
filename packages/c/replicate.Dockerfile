# The process that ships databases, alone: docker build -t onewrite-replicate --build-arg ARCHIVE=onewrite-VERSION-x86_64-linux-musl \
#     -f packages/c/replicate.Dockerfile dist
# docker run --user "$(id -u)" -v /srv/app:/data -v /etc/onewrite/app.yml:/etc/onewrite.yml:ro onewrite-replicate
FROM scratch AS archive
ARG ARCHIVE
ADD ${ARCHIVE}.tar.gz /
FROM scratch
ARG ARCHIVE
COPY --from=archive /${ARCHIVE}/onewrite-replicate /usr/bin/onewrite-replicate
COPY --from=archive /${ARCHIVE}/LICENSE-MIT /${ARCHIVE}/LICENSE-APACHE /usr/share/doc/onewrite/
# The image has no other directory that a user may write.
ENV TMPDIR=/data
WORKDIR /data
ENTRYPOINT ["/usr/bin/onewrite-replicate"]
CMD ["replicate", "--config", "/etc/onewrite.yml"]
